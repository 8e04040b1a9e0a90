"""Calibration of early exit: how often each number of layers agrees with the target, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.coupled_sampler import top_candidates
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams

_MOST_PROMPT = 1024
"""Most prompt tokens used, taken from the prompt's end."""
_MOST_ROWS = 256
_MOST_DRAFTED = 16


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """The expected result of drafting with this many first layers, for one request at a time."""

    layers: int
    agreement: float
    """Share of the target's tokens that the first layers guess, given all tokens before."""
    seconds: float
    """Duration of a pass of one row through the first layers."""
    draft_tokens: int
    """Best number of tokens to draft, one after the other, before a step; 0 if drafting does not pay."""
    speedup: float
    """Tokens per second relative to plain decoding."""


@dataclass(frozen=True, slots=True)
class EarlyExitCalibration:
    """The comparison of all numbers of layers."""

    tokens: int
    """Number of the target's tokens compared."""
    step_seconds: float
    """Duration of a pass of one row through all layers."""
    exits: list[EarlyExit]

    @property
    def best(self) -> EarlyExit | None:
        """The fastest number of layers, None if all are slower than plain decoding."""
        fastest = max(self.exits, key=lambda each: each.speedup)
        return fastest if fastest.draft_tokens else None


def calibrate_early_exit(
    model: PackedModel,
    prompts: Iterable[Sequence[int]],
    tokens: int,
    temperature: float,
    tell: Callable[[str, float], None] = lambda part, done: None,
) -> EarlyExitCalibration:
    """Continues each prompt with the target by `tokens` tokens, and counts which of them its first layers guess.

    The layers guess as in service: the likeliest token under the request's own noise. tell: called with the name
    of each part as it begins, and the share of all parts that are done, 0 to 1. Raises FieldError.
    """
    if model.layers < 2:
        raise FieldError("model", "has only one layer, so none can be left out")
    most = min(_MOST_PROMPT, model.context_length - tokens, model.pool.capacity - tokens)
    if tokens < 1 or most < 1:
        raise FieldError("tokens", f"must be at least 1 and leave room for a prompt, got {tokens}")
    cut = [list(prompt)[-most:] for prompt in prompts if len(prompt)]
    if not cut:
        raise FieldError("prompts", "has no text")
    specs = [
        SequenceSpec(index, prompt, len(prompt) + tokens, SamplingParams(temperature=temperature, seed=index))
        for index, prompt in enumerate(cut)
    ]
    parts = model.layers + 1  # continuing the texts, timing a step, and all layers but the last
    tell(f"{len(cut)} texts continued by {tokens} tokens each", 0.0)
    engine = VerificationEngine(model, StepCost([1], [1.0]), EngineLimits(max_tree_nodes=0))  # it plans nothing
    texts = [[*spec.tokens, *after] for spec, after in zip(specs, generate_all(engine, specs), strict=True)]
    tell("time of a step", 1 / parts)
    step = measure_step_cost(model)
    exits: list[EarlyExit] = []
    for layers in range(1, model.layers):
        tell(f"exit after {layers} of {model.layers} layers", (layers + 1) / parts)
        view = model.first_layers(layers)
        drafting = measure_step_cost(view)
        agreeing = sum(_agreeing(view, spec, text) for spec, text in zip(specs, texts, strict=True))
        agreement = agreeing / (tokens * len(specs))
        draft_tokens, speedup = expected_speedup(agreement, drafting, step)
        exits.append(EarlyExit(layers, agreement, drafting.seconds(1), draft_tokens, speedup))
    return EarlyExitCalibration(tokens * len(specs), step.seconds(1), exits)


def expected_speedup(agreement: float, drafting: StepCost, step: StepCost) -> tuple[int, float]:
    """Returns the best number of tokens to draft before a step, one after the other, and the speed-up over plain
    decoding.

    A step after k draft tokens commits 1 + a + a^2 + ... + a^k tokens, and takes the time of k rounds and the step.
    """
    best = 0, 1.0
    committed, seconds = 1.0, 0.0
    for count in range(1, _MOST_DRAFTED + 1):
        committed += agreement**count
        seconds += drafting.seconds(1)
        speedup = committed * step.seconds(1) / (seconds + step.seconds(count + 1))
        if speedup > best[1]:
            best = count, speedup
    return best


def _agreeing(view: PackedModel, spec: SequenceSpec, text: Sequence[int]) -> int:
    """Returns how many tokens after the prompt the view guesses."""
    first, end = len(spec.tokens) - 1, len(text) - 1
    slots = view.pool.take(end)
    found = 0
    try:
        for start in range(0, end, _MOST_ROWS):
            stop = min(start + _MOST_ROWS, end)
            builder = BatchBuilder()
            rows = [
                builder.add_row(text[at], at, int(slots[at]), wants_logits=at >= first) for at in range(start, stop)
            ]
            builder.add_lane(slots[:start], rows)
            logits = view.forward(builder.build(view.group_size, view.device))
            positions = range(max(start, first) + 1, stop + 1)
            if positions:
                sampling = SamplingBatch.build([spec.sampling] * len(positions), list(positions), view.device)
                guessed = top_candidates(logits, sampling, 1).token_ids[:, 0].tolist()
                found += sum(text[at] == token for at, token in zip(positions, guessed, strict=True))
    finally:
        view.pool.give_back(slots)
    return found
