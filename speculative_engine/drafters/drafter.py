"""What every speculation method does: open, commit, grow, close."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from speculative_engine.proposal import Proposal
from speculative_engine.sampling_params import SamplingParams
from speculative_engine.step_clock import StepClock


class OutOfSyncError(Exception):
    """A verdict does not continue the drafter's copy of the sequence; the sequence has to be opened again."""


class DrafterFullError(Exception):
    """The sequence is larger than all the drafter's memory."""


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A sequence to draft for."""

    tokens: Sequence[int]
    """Committed tokens, prompt and output; at least one."""
    sampling: SamplingParams
    max_tree_nodes: int
    """Credit: most live nodes in the tree."""
    max_length: int
    """Committed length at which the sequence ends at the latest."""
    vocab_size: int | None = None
    """Ids at or above it are never drafted, since the target lacks them; None allows all of the drafter's own."""
    draws: bool = False
    """Draw the tokens from the drafter's own distribution, and say from what. Drafters without a model need not: what
    they propose counts as certain."""
    dynamic_temperature: bool = False
    """Draft the cooler the less sure the drafter is (see `speculative_engine.drawing`); for drafters with a model."""


@dataclass(slots=True)
class Growth:
    """What one drafting step brought."""

    opened: list[Hashable]
    """Sequences that have caught up with their committed tokens for the first time."""
    proposals: dict[Hashable, Proposal]
    """New nodes by sequence."""
    seconds: float


class Drafter(Protocol):
    """Drafts for many sequences at once. One thread at a time calls it."""

    clock: StepClock
    """Whoever calls it enters what is done between the calls."""

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Start drafting for a sequence; an open one is replaced. Raises DrafterFullError."""

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Follow a verdict: `tokens` make the sequence `committed_length` long. Raises OutOfSyncError, KeyError."""

    def close(self, key: Hashable) -> None:
        """Stop drafting for a sequence and free what it holds; does nothing if it is not open."""

    @property
    def busy(self) -> bool:
        """Whether `grow` has something to do."""

    def grow(self) -> Growth:
        """Draft one step for all sequences that have room."""
