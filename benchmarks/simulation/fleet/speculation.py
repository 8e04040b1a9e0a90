"""How a fleet speculates: with drafters of its own, on the target's accelerator, or not at all."""

from __future__ import annotations

from typing import Protocol

from benchmarks.harness.simulated_models import ModelPair
from benchmarks.simulation.fleet.drafting_cell import Cells, Trace
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from speculative_engine.planning.step_cost import StepCost

PLAIN = Trace(((0, 1),), 0.0)
"""A step without draft tokens."""
_LENGTHS = range(1, 11)
"""Chains that speculation beside the target may draft."""
_TEXT = 4000
"""Tokens from which lengths of accepted chains are taken."""


class Speculation(Protocol):
    """A way of speculating, which determines a verifier's steps."""

    drafters: bool
    """Whether sequences are opened at drafters."""

    def trace(
        self, batch: int, drafted: int, chance: float, *, reading: bool, target_share: int, draft_share: int
    ) -> Trace:
        """See Cells.trace. drafted: 0 for a sequence for which nobody drafts."""

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """Seconds of the target's accelerator that drafting takes for a step."""


class NoSpeculation:
    """A token a step."""

    drafters = False

    def trace(
        self, batch: int, drafted: int, chance: float, *, reading: bool, target_share: int, draft_share: int
    ) -> Trace:
        """See Speculation."""
        return PLAIN

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """None."""
        return 0.0


class RemoteSpeculation:
    """Drafters on hosts of their own, as draftwire has them."""

    drafters = True

    def __init__(self, cells: Cells):
        self._cells = cells

    def trace(
        self, batch: int, drafted: int, chance: float, *, reading: bool, target_share: int, draft_share: int
    ) -> Trace:
        """See Speculation."""
        if not drafted:
            return PLAIN
        return self._cells.trace(
            batch, drafted, chance, reading=reading, target_share=target_share, draft_share=draft_share
        )

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """None: that is what drafters are for."""
        return 0.0


class CoLocatedSpeculation:
    """A chain drafted on the target's accelerator, then verified, as engines without drafters of their own do it.

    The chain's length is the best one for each number of sequences, none where drafting does not pay, chosen by the
    same times and texts that are simulated. Nothing is drafted while the target works.
    """

    drafters = False

    def __init__(self, pair: ModelPairTimes):
        self._target, self._draft = pair.target.cost(), pair.draft.cost()
        self._around = pair.target_around
        text = ModelPair(pair.places(_TEXT + 1, "co-located"), _TEXT, "co-located")
        self._chains = {length: _chain(text, length) for length in _LENGTHS}
        self._best: dict[int, tuple[Trace, float]] = {}

    def trace(
        self, batch: int, drafted: int, chance: float, *, reading: bool, target_share: int, draft_share: int
    ) -> Trace:
        """See Speculation."""
        return self._of(batch)[0]

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """The chain's steps, and the draft model's pass over prompts."""
        reading = _seconds(self._draft, prompt_rows)
        return reading + (self._of(batch)[1] if batch else 0.0)

    def _of(self, batch: int) -> tuple[Trace, float]:
        found = self._best.get(batch)
        if found is None:
            around = self._around.seconds(batch)
            options = [(PLAIN, 0.0)]
            options += [(chain, self._drafting(batch, length, chain)) for length, chain in self._chains.items()]
            found = self._best[batch] = max(
                options,
                key=lambda option: (
                    option[0].tokens_per_step
                    / (self._target.seconds(round(batch * (1 + option[0].nodes_per_step))) + option[1] + around)
                ),
            )
        return found

    def _drafting(self, batch: int, length: int, chain: Trace) -> float:
        """Seconds: the first step reads what was committed since the last chain, each other one its own last token."""
        first = self._draft.seconds(round(batch * chain.tokens_per_step))
        return first + (length - 1) * self._draft.seconds(batch)


def prompt_seconds(cost: StepCost, tokens: int, most_rows: int) -> float:
    """Returns the time to read this many tokens, in steps of at most `most_rows`."""
    whole, rest = divmod(tokens, most_rows)
    return whole * cost.seconds(most_rows) + _seconds(cost, rest)


def _seconds(cost: StepCost, rows: int) -> float:
    return cost.seconds(rows) if rows else 0.0


def _chain(text: ModelPair, length: int) -> Trace:
    """Steps through a text with a chain of so many tokens each, at its end less."""
    steps, position = [], 1
    while position + length < _TEXT:
        accepted = 0
        while accepted < length:
            tokens, _ = text.draft(position + accepted, on_path=True)
            if tokens[0] != text.target(position + accepted):
                break
            accepted += 1
        steps.append((length, accepted + 1))
        position += accepted + 1
    return Trace(tuple(steps), 0.0)
