"""Timed steps of a model on one device: passes of several sizes, and the engine's steps around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_tools.spread import Spread

_SOURCE = "draft"


def synchronize(device: torch.device) -> None:
    """Waits for all work queued on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device, runs: int) -> list[float]:
    """Returns the time of each of `runs` synchronised runs, after two that warm up."""
    times: list[float] = []
    for turn in range(-2, runs):
        synchronize(device)
        started = time.perf_counter()
        run()
        synchronize(device)
        if turn >= 0:
            times.append(time.perf_counter() - started)
    return times


def milliseconds(times: Sequence[float]) -> Spread:
    """Converts seconds to a spread in milliseconds."""
    return Spread.of([1e3 * each for each in times])


def copied_bytes_per_second(device: torch.device, size: int, runs: int) -> float:
    """Returns the memory bandwidth of the device: bytes read and written per second by its best copy of `size`
    bytes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(seconds(lambda: target.copy_(source), device, runs))


def rows_batch(model: PackedModel, slots: np.ndarray, context: int, tokens: Sequence[int]) -> PackedBatch:
    """Returns rows of one sequence after the first `context` slots, which hold earlier tokens."""
    builder = BatchBuilder()
    rows = [
        builder.add_row(token, context + index, int(slots[context + index]), True) for index, token in enumerate(tokens)
    ]
    builder.add_lane(slots[:context], rows)
    return builder.build(model.group_size, model.device)


def step_seconds(model: PackedModel, context: int, rows: Sequence[int], runs: int) -> dict[int, list[float]]:
    """Returns the time of a pass by its number of rows, each with its logits, after a context."""
    slots = model.pool.take(context + max(rows))
    try:
        return {
            count: seconds(
                lambda count=count: model.forward(rows_batch(model, slots, context, range(count))), model.device, runs
            )
            for count in rows
        }
    finally:
        model.pool.give_back(slots)


def batch_seconds(model: PackedModel, context: int, sequences: int, runs: int) -> list[float]:
    """Returns the time of a pass of one row of each sequence, each after a context of its own."""
    slots = model.pool.take(sequences * (context + 1))
    try:
        builder = BatchBuilder()
        for own in np.split(slots, sequences):
            builder.add_lane(own[:-1], [builder.add_row(1, context, int(own[-1]), True)])
        batch = builder.build(model.group_size, model.device)
        return seconds(lambda: model.forward(batch), model.device, runs)
    finally:
        model.pool.give_back(slots)


def prompt_seconds(model: PackedModel, tokens: int, runs: int) -> list[float]:
    """Returns the time of reading a prompt in chunks of the model's usual size, with the logits of its last token."""
    slots = model.pool.take(tokens)

    def read() -> None:
        for first in range(0, tokens, model.most_rows):
            last = min(tokens, first + model.most_rows)
            builder = BatchBuilder()
            rows = [
                builder.add_row(at % model.vocab_size, at, int(slots[at]), at + 1 == tokens)
                for at in range(first, last)
            ]
            builder.add_lane(slots[:first], rows)
            model.forward(builder.build(model.group_size, model.device))

    try:
        return seconds(read, model.device, runs)
    finally:
        model.pool.give_back(slots)


def several_passes(model: PackedModel, context: int) -> list[torch.Tensor]:
    """Returns the logits of passes of 16, 3 and 1 rows after a context: [rows, vocabulary] each.

    Later passes find in the cache what the first has left, so all are the same however often they run.
    """
    slots = model.pool.take(context + 16)
    try:
        return [model.forward(rows_batch(model, slots, context, range(rows))).clone() for rows in (16, 3, 1)]
    finally:
        model.pool.give_back(slots)


@torch.inference_mode()
def logits_in_chunks(model: PackedModel, tokens: Sequence[int], chunk: int) -> torch.Tensor:
    """Returns the logits after each token of a text, computed in chunks: [tokens, vocabulary]."""
    slots = model.pool.take(len(tokens))
    try:
        parts = [
            model.forward(rows_batch(model, slots, first, tokens[first : first + chunk]))
            for first in range(0, len(tokens), chunk)
        ]
    finally:
        model.pool.give_back(slots)
    return torch.cat(parts)


@dataclass(frozen=True)
class Run:
    """Totals over some requests, run one after another."""

    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    """Seconds of the steps after those that end a prompt."""
    decoded: int
    """Tokens that these steps gave."""
    steps: int
    drafted: int
    accepted: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of decoding."""
        return self.decoded / self.seconds

    @property
    def step_seconds(self) -> float:
        """Seconds of an engine step, including all work between two passes."""
        return self.seconds / self.steps


class Generator:
    """An engine that decodes one request at a time, with or without a draft model in its own thread."""

    def __init__(self, target: PackedModel, cost: StepCost, draft: PackedModel | None = None):
        self._engine = VerificationEngine(target, cost, EngineLimits())
        self._drafts = draft is not None
        if draft is not None:
            share = min(1.0, draft.parameters / target.parameters)
            self._engine.add_drafter(_SOURCE, LocalModelDrafter(draft, share))

    def run(self, prompts: Sequence[Sequence[int]], max_tokens: int, temperature: float) -> Run:
        """Generates from each prompt, with its number as the seed."""
        outputs: list[tuple[int, ...]] = []
        total, decoded, steps, drafted, accepted = 0.0, 0, 0, 0, 0
        engine = self._engine
        for number, prompt in enumerate(prompts):
            sampling = SamplingParams(temperature=temperature, seed=number)
            engine.add(SequenceSpec(number, prompt, len(prompt) + max_tokens, sampling))
            if self._drafts:
                engine.attach(number, _SOURCE)
            tokens: list[int] = []
            began = 0.0
            while engine.running:
                for outcome in engine.step().outcomes:
                    if tokens:
                        steps += 1
                        decoded += len(outcome.tokens)
                        drafted += sum(outcome.drafted.values())
                        accepted += outcome.accepted
                    else:
                        began = time.perf_counter()
                    tokens += outcome.tokens
            total += time.perf_counter() - began
            outputs.append(tuple(tokens))
        return Run(tuple(outputs), total, decoded, steps, drafted, accepted)
