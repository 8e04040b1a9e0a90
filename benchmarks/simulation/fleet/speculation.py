"""Speculation of a fleet: with its own drafters, on the target's accelerator, or none."""

from __future__ import annotations

from typing import Protocol

from benchmarks.harness.simulated_models import ModelPair
from benchmarks.simulation.fleet.drafting_cell import Cells, Trace
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from speculative_engine.planning.step_cost import StepCost

PLAIN = Trace(((0, 1),), 0.0)
"""A step without draft tokens."""
_LENGTHS = range(1, 11)
"""Lengths of chains that speculation beside the target may draft."""
_TEXT = 4000
"""Tokens of text from which lengths of accepted chains are sampled."""


class Speculation(Protocol):
    """A way of speculating, which determines a verifier's steps."""

    drafters: bool
    """Whether sequences are opened at drafters."""

    def trace(
        self, batch: int, drafted: int, chance: float, *, reading: bool, target_share: int, draft_share: int
    ) -> Trace:
        """Returns the trace for a sequence, like Cells.trace. drafted: 0 for a sequence without a drafter."""

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """Returns the seconds of the target's accelerator that drafting takes for a step."""


class NoSpeculation:
    """Plain decoding: one token per step."""

    drafters = False

    def trace(
        self, batch: int, drafted: int, chance: float, *, reading: bool, target_share: int, draft_share: int
    ) -> Trace:
        """Returns plain steps."""
        return PLAIN

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """Returns 0."""
        return 0.0


class RemoteSpeculation:
    """Drafters on their own hosts, as in draftwire."""

    drafters = True

    def __init__(self, cells: Cells):
        self._cells = cells

    def trace(
        self, batch: int, drafted: int, chance: float, *, reading: bool, target_share: int, draft_share: int
    ) -> Trace:
        """Returns the trace of a cell of this load, or plain steps without a drafter."""
        if not drafted:
            return PLAIN
        return self._cells.trace(
            batch, drafted, chance, reading=reading, target_share=target_share, draft_share=draft_share
        )

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """Returns 0: drafting takes place elsewhere."""
        return 0.0


class CoLocatedSpeculation:
    """A chain drafted on the target's accelerator, then verified, as in engines without separate drafters.

    The chain's length is the best one for each number of sequences, by the simulated times and texts; none where
    drafting does not pay. Nothing is drafted while the target works.
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
        """Returns the trace of the best chain for this number of sequences."""
        return self._of(batch)[0]

    def own_seconds(self, batch: int, prompt_rows: int) -> float:
        """Returns the seconds of the chain's steps, and of the draft model's pass over prompts."""
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
        """Returns the seconds of a chain: the first step reads what was committed since the last chain, each further
        one its own last token."""
        first = self._draft.seconds(round(batch * chain.tokens_per_step))
        return first + (length - 1) * self._draft.seconds(batch)


def prompt_seconds(cost: StepCost, tokens: int, most_rows: int) -> float:
    """Returns the time to read this many tokens, in steps of at most `most_rows`."""
    whole, rest = divmod(tokens, most_rows)
    return whole * cost.seconds(most_rows) + _seconds(cost, rest)


def _seconds(cost: StepCost, rows: int) -> float:
    return cost.seconds(rows) if rows else 0.0


def _chain(text: ModelPair, length: int) -> Trace:
    """Returns the steps through a text with chains of `length` tokens, shorter ones at its end."""
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
