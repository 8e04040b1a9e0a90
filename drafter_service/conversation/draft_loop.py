"""The draft loop: a thread that drafts for the sequences of all verifiers, one packed batch per step."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import torch

from drafter_service.conversation.opened_sequence import SequenceKey
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.step_times_pb2 import StepTimes
from draftwire_core.engine.drafters.drafter import (
    DrafterFullError,
    DraftSpec,
    FeatureDrafter,
    LimitedDrafter,
    OutOfSyncError,
    SharedDrafter,
    StateDrafter,
)
from draftwire_core.engine.kv.fair_shares import ServedVerifier
from draftwire_core.engine.kv.slot_queue import SlotUse
from draftwire_core.engine.model.features.feature_codec import decode
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.runtime.duration import step_times
from draftwire_core.runtime.errors import ServiceError, at_capacity, failed_precondition
from draftwire_core.runtime.observability.histogram import Histogram
from draftwire_core.runtime.observability.metric_families import SIZES, STEP_SECONDS
from draftwire_core.runtime.threads.command_thread import TooManyCommands
from draftwire_core.runtime.threads.engine_thread import EngineThread


class DraftingCounts:
    """Counts since the start. One thread writes; any may read."""

    def __init__(self) -> None:
        self.nodes = 0
        """Number of nodes proposed."""
        self.seconds = Histogram(STEP_SECONDS)
        """Durations of the steps that drafted."""
        self.sequences = Histogram(SIZES)
        """Numbers of sequences that each step proposed nodes for."""
        self.part_seconds: dict[str, float] = {}
        """Drafting threads' time in seconds by part, for models that have been released."""

    def stepped(self, seconds: float, sequences: int, nodes: int) -> None:
        """Counts a step."""
        self.seconds.observe(seconds)
        self.sequences.observe(sequences)
        self.nodes += nodes

    def add(self, other: "DraftingCounts", part_seconds: Mapping[str, float]) -> None:
        """Adds the counts of another model, and its thread's time by part."""
        self.nodes += other.nodes
        self.seconds.add(other.seconds)
        self.sequences.add(other.sequences)
        for part, seconds in part_seconds.items():
            self.part_seconds[part] = self.part_seconds.get(part, 0.0) + seconds


ResultT = TypeVar("ResultT")

_RETRY_SECONDS = 1.0
"""Time after which a verifier that was refused for lack of room may retry: sequences end within seconds."""
_MAX_WAITING = 1024
"""Maximum number of one stream's commands that wait for the thread: many steps' worth of verdicts."""


@dataclass(slots=True)
class DraftReport:
    """The results of one step for one stream."""

    opened: list[SequenceKey] = field(default_factory=list)
    """Sequences that caught up with their committed tokens."""
    proposals: list[tuple[SequenceKey, Proposal]] = field(default_factory=list)
    """New nodes, at most one proposal per sequence."""
    faults: list[tuple[SequenceKey, ServiceError]] = field(default_factory=list)
    """Sequences that failed and are closed."""
    pongs: list[int] = field(default_factory=list)
    """Numbers of the pings that the thread has handled."""
    seconds: float = 0.0
    """Duration of the step in seconds."""
    rows: int = 0
    """Rows of the step computed for this stream."""
    preemptions: int = 0
    """Number of times that a sequence of the stream gave up its KV slots to others."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One verdict for the drafter."""

    key: SequenceKey
    committed_length: int
    """Number of committed tokens after the verdict."""
    tokens: Sequence[int]
    """The tokens that the verdict committed."""
    max_tree_nodes: int | None = None
    """Credit until the next verdict; None for the opening's credit."""
    state: torch.Tensor | None = None
    """The target's last hidden state after the tokens, for a drafter that drafts from it."""


@dataclass(frozen=True, slots=True)
class Received:
    """Features of consecutive tokens of a sequence, for a drafter that drafts from them."""

    key: SequenceKey
    start: int
    """Position of the first token."""
    count: int
    values: bytes
    """The features, encoded (`model.feature_codec`)."""
    width: int
    dtype: str


class _Stream:
    """One stream's listener, and counts of the commands it posted and the thread took.

    Only the event loop writes the posted counts and only the thread writes the taken ones, so no lock is needed.
    """

    __slots__ = ("listener", "posted", "posted_tokens", "taken", "taken_tokens", "verifier")

    def __init__(self, listener: Callable[[DraftReport], None], verifier: ServedVerifier) -> None:
        self.listener = listener
        self.verifier = verifier
        self.posted = self.posted_tokens = 0
        self.taken = self.taken_tokens = 0


class DraftLoop:
    """Owns the drafter and the thread that runs it. Called from the event loop only.

    Calls post commands, which the thread runs in order between two steps. A step returns its results in one call into
    the event loop, however many streams and sequences there are. There each stream's listener, which must not raise,
    gets its own report.

    The commands that wait for the thread are bounded per stream, so that only the stream that floods it gets an error.
    """

    def __init__(
        self,
        drafter: LimitedDrafter,
        *,
        on_failure: Callable[[BaseException], None],
        threads: int | None = None,
        max_streams: int = 64,
        max_waiting_tokens: int = 1 << 20,
        keep_alive: Callable[[], float | None] | None = None,
    ) -> None:
        """on_failure: called when the thread has ended by an error. threads: CPU threads of a forward pass.
        max_streams: maximum number of attached streams. max_waiting_tokens: maximum tokens of one stream's openings and
        verdicts that wait for the thread; openings may take half of it. keep_alive: PackedModel.keep_alive, called when
        there is nothing to draft.
        """
        self._drafter = drafter
        self._shared = drafter if isinstance(drafter, SharedDrafter) else None
        self._clock = drafter.clock
        self._threads = threads
        self._keep_alive = keep_alive
        self._max_waiting_tokens = max_waiting_tokens
        # Twice, because a stream's successor may attach before the thread has taken the stream's commands.
        self._engine = EngineThread(
            self._step, name="draft-loop", on_failure=on_failure, max_commands=2 * max_streams * _MAX_WAITING
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        # Not a command: a stream's sequences must be freed even if no more commands are accepted.
        self._ended_streams: deque[int] = deque()
        # Used by the thread, from here on.
        self._keys: dict[int, set[SequenceKey]] = {}
        self._reports: dict[int, DraftReport] = {}
        self.counts = DraftingCounts()

    def start(self) -> None:
        """Starts the thread. Must be called in the event loop that receives the reports."""
        self._loop = asyncio.get_running_loop()
        threads = self._threads
        if threads is not None:
            # OpenMP keeps the number per calling thread, so it must be set in the thread that computes.
            self._engine.post(lambda: torch.set_num_threads(threads))
        self._engine.start()

    async def stop(self) -> None:
        """Ends the thread after its current step, and releases the drafter. Must be called once."""
        await self._engine.stop()
        # Frees the model's memory even if something still refers to the loop.
        del self._drafter
        self._keep_alive = None
        self._shared = None

    def attach(self, listener: Callable[[DraftReport], None], name: str = "", weight: float = 1.0) -> int:
        """Attaches a stream, and returns its number. `listener` gets the stream's reports until `detach`.

        name: the verifier's name; all streams of a verifier share what its weight entitles it to.
        """
        self._last_stream += 1
        verifier = ServedVerifier(name, weight, self._last_stream)
        self._streams[self._last_stream] = _Stream(listener, verifier)
        return self._last_stream

    def detach(self, stream: int) -> None:
        """Ends a stream: closes its sequences, and no longer calls its listener."""
        self._streams.pop(stream, None)
        self._ended_streams.append(stream)
        try:
            self._engine.post(lambda: None)
        except TooManyCommands:
            return  # the thread is awake in this case, and sees that the stream has ended

    def open(self, key: SequenceKey, spec: DraftSpec) -> None:
        """Starts drafting for a sequence. Raises ServiceError if too many of the stream's commands or tokens wait."""
        spec = replace(spec, verifier=self._streams[key.stream].verifier)
        self._post(key.stream, lambda: self._open(key, spec), len(spec.tokens), self._max_waiting_tokens // 2)

    def commit(self, commits: Sequence[Commit]) -> None:
        """Applies verdicts of one stream; those for failed sequences are ignored. Raises ServiceError as `open` does.

        Verdicts that arrived together are posted together, so that their sequences share the next step.
        """
        tokens = sum(len(commit.tokens) for commit in commits)
        self._post(commits[0].key.stream, lambda: self._commit(commits), tokens, self._max_waiting_tokens)

    def receive(self, received: Sequence[Received]) -> None:
        """Passes on features for sequences of one stream; those for failed sequences are ignored. Raises ServiceError
        as `open` does."""
        tokens = sum(each.count for each in received)
        self._post(received[0].key.stream, lambda: self._receive(received), tokens, self._max_waiting_tokens)

    def close(self, keys: Sequence[SequenceKey]) -> None:
        """Closes sequences of one stream; those that are not open are ignored. Raises ServiceError as `open` does."""
        self._post(keys[0].stream, lambda: self._close(keys))

    def ping(self, stream: int, number: int) -> None:
        """Makes the thread answer a ping in the stream's next report. Raises ServiceError as `open` does."""
        self._post(stream, lambda: self._report(stream).pongs.append(number))

    @property
    def drafted_nodes(self) -> int:
        """Number of nodes proposed."""
        return self.counts.nodes

    @property
    def sequences(self) -> int:
        """Approximate number of open sequences; the thread may be opening or closing some."""
        return sum(map(len, list(self._keys.values())))

    def slot_use(self) -> dict[ServedVerifier, SlotUse]:
        """Returns the approximate use of KV slots by each stream with open sequences; empty for a drafter without
        slots."""
        return self._shared.slot_use() if self._shared is not None else {}

    def part_seconds(self) -> dict[str, float]:
        """Returns the time of the loop's steps in seconds, by part."""
        return self._clock.seconds()

    def step_times(self) -> StepTimes:
        """Returns the number and times of the loop's steps, by part."""
        return step_times(self._clock.steps, self._clock.seconds(), self._clock.cpu_around_forward)

    async def open_sequences(self) -> int:
        """Returns the exact number of open sequences, counted after all commands posted before."""

        def count() -> int:
            self._close_ended_streams()
            return sum(len(keys) for keys in self._keys.values())

        return await self._engine.call(count)

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Runs `function` in the thread after all commands posted before, and returns its result.

        Needs a deadline, since a hanging model never answers. Raises ThreadEnded and TooManyCommands.
        """
        return await self._engine.call(function)

    def _post(self, number: int, command: Callable[[], None], tokens: int = 0, most_tokens: int = 0) -> None:
        stream = self._streams[number]
        waiting_tokens = stream.posted_tokens - stream.taken_tokens
        too_many_tokens = waiting_tokens and tokens and waiting_tokens + tokens > most_tokens
        if stream.posted - stream.taken >= _MAX_WAITING or too_many_tokens:
            raise at_capacity("the drafter is too far behind the verifier's messages", _RETRY_SECONDS)
        stream.posted += 1
        stream.posted_tokens += tokens

        def take() -> None:
            stream.taken += 1
            stream.taken_tokens += tokens
            self._clock.enter("wire")
            command()

        self._engine.post(take)

    # In the thread, from here on.

    def _open(self, key: SequenceKey, spec: DraftSpec) -> None:
        if key.stream not in self._streams:
            return  # the end of a stream is not a command, so the thread may see it before this one
        try:
            self._drafter.open(key, spec)
        except DrafterFullError as error:
            self._report(key.stream).faults.append((key, at_capacity(str(error), _RETRY_SECONDS)))
        else:
            self._keys.setdefault(key.stream, set()).add(key)

    def _commit(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if commit.key not in self._keys.get(commit.key.stream, ()):
                continue
            try:
                self._drafter.commit(commit.key, commit.committed_length, commit.tokens)
                self._drafter.limit(commit.key, commit.max_tree_nodes)
                if commit.state is not None:
                    cast(StateDrafter, self._drafter).see(commit.key, commit.state)
            except OutOfSyncError as error:
                self._close([commit.key])
                fault = failed_precondition(ErrorReason.ERROR_REASON_OUT_OF_SYNC, str(error))
                self._report(commit.key.stream).faults.append((commit.key, fault))

    def _receive(self, received: Sequence[Received]) -> None:
        drafter = cast(FeatureDrafter, self._drafter)
        for each in received:
            if each.key in self._keys.get(each.key.stream, ()):
                drafter.receive(each.key, each.start, decode(each.values, each.width, each.dtype))

    def _close(self, keys: Sequence[SequenceKey]) -> None:
        for key in keys:
            self._keys.get(key.stream, set()).discard(key)
            self._drafter.close(key)

    def _close_ended_streams(self) -> None:
        while self._ended_streams:
            stream = self._ended_streams.popleft()
            for key in self._keys.pop(stream, ()):
                self._drafter.close(key)
            self._reports.pop(stream, None)

    def _step(self) -> float | None:
        """Runs a step if there is anything to draft. Returns the time to wait for commands; None waits for one."""
        self._clock.enter("wire")
        self._close_ended_streams()
        self._hand_over()  # pongs and faults must not wait for a step
        self._clock.enter("plan")
        busy = self._drafter.busy
        if busy:
            growth = self._drafter.grow()
            self._clock.enter("wire")
            for opened in cast(list[SequenceKey], growth.opened):
                self._report(opened.stream).opened.append(opened)
            nodes = 0
            for key, proposal in cast(dict[SequenceKey, Proposal], growth.proposals).items():
                report = self._report(key.stream)
                report.proposals.append((key, proposal))
                nodes += len(proposal.token_ids)
                report.seconds = growth.seconds
            for verifier, rows in growth.rows.items():
                self._report(verifier.stream).rows = rows
            for verifier, times in growth.preempted.items():
                self._report(verifier.stream).preemptions = times
            if growth.proposals:
                self.counts.stepped(growth.seconds, len(growth.proposals), nodes)
            self._hand_over()
            return 0.0
        self._clock.enter("wait" if any(self._keys.values()) else None)
        return None if self._keep_alive is None else self._keep_alive()

    def _hand_over(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, {}
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._hand_out, reports)

    def _report(self, stream: int) -> DraftReport:
        return self._reports.setdefault(stream, DraftReport())

    # In the event loop again.

    def _hand_out(self, reports: dict[int, DraftReport]) -> None:
        for number, report in reports.items():
            stream = self._streams.get(number)
            if stream is not None:  # otherwise it has ended meanwhile
                stream.listener(report)
