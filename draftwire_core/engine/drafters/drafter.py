"""The interface of every speculation method: open, commit, grow, close."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from draftwire_core.engine.kv.fair_shares import SOLE, ServedVerifier
from draftwire_core.engine.kv.kv_slots import SlotList
from draftwire_core.engine.kv.slot_queue import SlotUse
from draftwire_core.engine.model.features.taps import Tap
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal


class OutOfSyncError(Exception):
    """A verdict does not continue the drafter's copy of the sequence; the sequence must be opened again."""


class DrafterFullError(Exception):
    """The sequence is larger than the drafter's entire memory."""


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A sequence to draft for."""

    tokens: Sequence[int]
    """Committed tokens, prompt and output; at least one."""
    sampling: SamplingParams
    max_tree_nodes: int
    """Credit: most live nodes in the tree."""
    max_length: int
    """Largest committed length of the sequence."""
    vocab_size: int | None = None
    """Ids at or above this are never drafted, since the target lacks them; None allows the drafter's whole
    vocabulary."""
    draws: bool = False
    """Whether to sample tokens from the drafter's own distribution and report it. Drafters without a model may ignore
    it: their proposals count as certain."""
    dynamic_temperature: bool = False
    """Whether to lower the temperature where the drafter is unsure (`sampling.drawing`); for drafters with a model."""
    verifier: ServedVerifier = SOLE
    """The verifier that the sequence belongs to."""
    private: bool = False
    """Whether nothing of its tokens may be kept for other sequences."""


@dataclass(slots=True)
class Growth:
    """The result of one drafting step."""

    opened: list[Hashable]
    """Sequences that have caught up with their committed tokens for the first time."""
    proposals: dict[Hashable, Proposal]
    """New nodes, by sequence."""
    seconds: float
    reading_seconds: float = 0.0
    """Part of `seconds` spent on reading prompts."""
    rows: Counter[ServedVerifier] = field(default_factory=Counter)
    """Number of the step's rows per verifier; only for drafters that verifiers share."""
    preempted: Counter[ServedVerifier] = field(default_factory=Counter)
    """Number of sequences preempted since the last step, by the verifier they belong to."""


class Drafter(Protocol):
    """Drafts for many sequences at once. Calls come from one thread at a time."""

    clock: StepClock
    """Splits the drafter's time by phase; the caller enters phases for what it does between calls."""

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Starts drafting for a sequence; an open one is replaced. Raises DrafterFullError."""

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Applies a verdict: `tokens` make the sequence `committed_length` long. Raises OutOfSyncError, KeyError."""

    def close(self, key: Hashable) -> None:
        """Stops drafting for a sequence and frees what it holds; does nothing if it is not open."""

    @property
    def busy(self) -> bool:
        """Whether `grow` has something to do."""

    def grow(self) -> Growth:
        """Drafts one step for all sequences that have room."""


class LimitedDrafter(Drafter, Protocol):
    """A drafter whose nodes cost others something, and whose number of nodes can be limited."""

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        """Changes the credit of an open sequence, at most to the original one, which None restores. Raises KeyError."""


@runtime_checkable
class SharedDrafter(Protocol):
    """A drafter with a model, whose rows and KV slots the verifiers share by weight (`fair_shares`)."""

    def slot_use(self) -> dict[ServedVerifier, SlotUse]:
        """Returns the KV slot use of each verifier with open sequences. Safe to call from another thread, where the
        figures are approximate."""


class RunningSpec(Protocol):
    """Limits of a running request, for a drafter in the engine's thread."""

    @property
    def max_draft_tokens(self) -> int | None:
        """Most nodes in its tree; None leaves the number to the engine."""

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and output together."""


class RunningSequence(Protocol):
    """A running sequence as a drafter in the engine's thread sees it; implemented by `engine.sequence.Sequence`."""

    @property
    def spec(self) -> RunningSpec:
        """The sequence's request."""

    @property
    def pending(self) -> int:
        """Committed tokens whose keys and values are not computed yet."""

    @property
    def slots(self) -> SlotList:
        """KV slots of the committed tokens that are already computed."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The part of the verification engine that one of its own drafters can see. It changes from step to step."""

    running: Mapping[int, RunningSequence]
    """The sequences that may hold KV slots, oldest first."""
    cost: StepCost
    """Cost model of the target's steps."""
    guessed: Callable[[], list[float]]
    """Returns the probability that other drafters have guessed the token, for each of the next positions: a mean over
    the sequences."""


@runtime_checkable
class UsesEngine(Protocol):
    """A Drafter that uses the target's own keys and values, or that must weigh its drafting time against the step."""

    def enter(self, engine: EngineState) -> None:
        """Receives the engine to draft for; called once, before anything else."""


@runtime_checkable
class OwnsModel(Protocol):
    """A Drafter in the engine's thread with a model of its own."""

    def release(self) -> None:
        """Frees the model, also from the GPU; called once, after everything else."""


@runtime_checkable
class StateDrafter(Drafter, Protocol):
    """A drafter that drafts from the target's last hidden states."""

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """Receives the target's last hidden state [hidden], from which a sequence's last committed token was drawn.

        Called after the `commit` of that token. Raises KeyError.
        """


@runtime_checkable
class FeatureDrafter(LimitedDrafter, Protocol):
    """A drafter that is given features of committed tokens: hidden states of the target, mapped to one vector each."""

    def receive(self, key: Hashable, start: int, features: torch.Tensor) -> None:
        """Takes features [n, width] of a sequence's tokens from position `start` on, which may be beyond its committed
        length. Raises KeyError."""


@runtime_checkable
class TappingDrafter(Drafter, Protocol):
    """A drafter in the engine's thread that drafts from hidden states between the target's layers.

    While it may draft, each pass over its sequences keeps a vector for every KV slot that it writes. The drafter reads
    those of committed tokens, whose slots the engine's sequences hold (`EngineState.running`).
    """

    @property
    def tap(self) -> Tap:
        """Reads the target's layers."""
