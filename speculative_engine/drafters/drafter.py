"""What every speculation method does: open, commit, grow, close."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from speculative_engine.kv.fair_shares import SOLE, ServedVerifier
from speculative_engine.kv.kv_slots import SlotList
from speculative_engine.kv.slot_queue import SlotUse
from speculative_engine.planning.step_clock import StepClock
from speculative_engine.planning.step_cost import StepCost
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.tree.proposal import Proposal


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
    """Draft the cooler the less sure the drafter is (`sampling.drawing`); for drafters with a model."""
    verifier: ServedVerifier = SOLE
    """Whom it is drafted for."""


@dataclass(slots=True)
class Growth:
    """What one drafting step brought."""

    opened: list[Hashable]
    """Sequences that have caught up with their committed tokens for the first time."""
    proposals: dict[Hashable, Proposal]
    """New nodes by sequence."""
    seconds: float
    reading_seconds: float = 0.0
    """Of these, what went into reading prompts."""
    rows: Counter[ServedVerifier] = field(default_factory=Counter)
    """Of the step, by whom they were for; of drafters that verifiers share."""
    preempted: Counter[ServedVerifier] = field(default_factory=Counter)
    """Times that sequences have given up their KV slots to others since the last step, by whose they are."""


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


class LimitedDrafter(Drafter, Protocol):
    """A drafter whose nodes cost others something, and that can be told to draft fewer."""

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        """Change the credit of an open sequence, at most to what it was opened with; None is that. Raises KeyError."""


@runtime_checkable
class SharedDrafter(Protocol):
    """A drafter with a model, whose rows and KV slots verifiers share by weight (`fair_shares`)."""

    def slot_use(self) -> dict[ServedVerifier, SlotUse]:
        """What each verifier with open sequences has of its KV slots. May be called from another thread; it is about
        right, then."""


class RunningSpec(Protocol):
    """Bounds of a running request, for a drafter in the engine's thread."""

    @property
    def max_draft_tokens(self) -> int | None:
        """Most nodes of its tree; None leaves it to the engine."""

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and output together."""


class RunningSequence(Protocol):
    """A running sequence, as a drafter in the engine's thread sees it; it is an `engine.sequence.Sequence`."""

    @property
    def spec(self) -> RunningSpec:
        """Its request."""

    @property
    def pending(self) -> int:
        """Committed tokens whose keys and values are not computed yet."""

    @property
    def slots(self) -> SlotList:
        """KV slots of the other committed ones."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What a drafter sees of the verifying engine in whose thread it drafts. All of it changes from step to step."""

    running: Mapping[int, RunningSequence]
    """The sequences that may hold KV slots, oldest first."""
    cost: StepCost
    """Of the target's steps."""


@runtime_checkable
class UsesEngine(Protocol):
    """A Drafter that drafts from the target's own keys and values, or whose drafting takes so long that it counts."""

    def enter(self, engine: EngineState) -> None:
        """The engine it drafts for; told once, before anything else."""


@runtime_checkable
class StateDrafter(Drafter, Protocol):
    """A drafter that drafts from the target's last hidden states."""

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """The target's last hidden state [hidden] behind a sequence's last committed token: what its output head drew
        that token from. Comes after the `commit` of that token. Raises KeyError."""
