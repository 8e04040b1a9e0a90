"""The engine as a library: a target and a draft model in one process and one thread, without services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer

_DRAFT = "draft"
_SEQUENCE = 1


@dataclass(slots=True)
class Generated:
    """The result of one call."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    steps: int = 0
    """Number of the target's forward passes that committed tokens."""
    draft_tokens: int = 0
    """Number of draft tokens verified."""
    accepted_tokens: int = 0
    """Number of draft tokens accepted."""


class InProcessGenerator:
    """Generates one text after another. Not thread-safe.

    Drafting and verification alternate in the calling thread, whereas services run them concurrently. As in the
    services, the planner decides which drafted nodes are verified.
    """

    def __init__(self, target: PackedModel, tokenizer: Tokenizer, draft: PackedModel, *, draft_steps: int = 4):
        """Both models share the tokenizer. draft_steps: most drafting steps before each step of the target."""
        self._draft_steps = draft_steps
        self._tokenizer = tokenizer
        self._eos = frozenset(target.eos_token_ids)
        self._engine = VerificationEngine(target, measure_step_cost(target), EngineLimits())
        self._drafter = DraftModelDrafter(draft, TreeGrowth(measure_step_cost(draft)))

    @classmethod
    def load(cls, target: str, draft: str, *, slots: int = 4096, draft_steps: int = 4) -> InProcessGenerator:
        """Loads two checkpoints. slots: most tokens of a text together with its tree. Raises ModelLoadError."""
        checkpoint = Checkpoint.find(target)
        model, tokenizer = PackedModel.load(checkpoint, slots=slots), Tokenizer.load(checkpoint)
        run_self_test(model)
        return cls(model, tokenizer, PackedModel.load(draft, slots=slots, row_exact=False), draft_steps=draft_steps)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        sampling: SamplingParams | None = None,
        acceptance: Acceptance = COUPLED,
        dynamic_temperature: bool = False,
    ) -> Generated:
        """Continues a prompt, given as text or token ids.

        Raises:
            FieldError: sampling or acceptance out of range.
            ValueError: no token in the prompt, or more tokens than there are slots.
        """
        sampling = (sampling or SamplingParams()).validate()
        acceptance.validate()
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise ValueError("the prompt has no tokens")
        engine, drafter, longest = self._engine, self._drafter, len(tokens) + max_tokens
        engine.add(SequenceSpec(_SEQUENCE, tokens, longest, sampling, self._eos, acceptance=acceptance))
        try:
            engine.attach(_SEQUENCE, _DRAFT)
            drafter.open(
                _SEQUENCE,
                DraftSpec(
                    tokens,
                    sampling,
                    engine.limits.max_tree_nodes,
                    longest,
                    engine.model.vocab_size,
                    draws=acceptance.draws,
                    dynamic_temperature=dynamic_temperature,
                ),
            )
            return self._run()
        finally:
            engine.remove(_SEQUENCE)
            drafter.close(_SEQUENCE)

    def _run(self) -> Generated:
        engine, drafter, result = self._engine, self._drafter, Generated()
        while engine.running:
            for _ in range(self._draft_steps):
                for proposal in drafter.grow().proposals.values():
                    engine.propose(_SEQUENCE, _DRAFT, proposal)
            for outcome in engine.step().outcomes:
                result.token_ids += outcome.tokens
                result.steps += 1
                result.draft_tokens += sum(outcome.drafted.values())
                result.accepted_tokens += outcome.accepted
                if outcome.finish is None:
                    drafter.commit(_SEQUENCE, outcome.committed_length, outcome.tokens)
        result.text = self._tokenizer.decode(result.token_ids, skip_special_tokens=True)
        return result
