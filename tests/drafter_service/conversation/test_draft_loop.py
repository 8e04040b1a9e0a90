"""The draft loop, with scripted drafters."""

import asyncio
import threading
from collections.abc import Hashable, Sequence

import pytest

from drafter_service.conversation.draft_loop import Commit, DraftLoop, DraftReport
from drafter_service.conversation.opened_sequence import SequenceKey
from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, Growth, OutOfSyncError
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.runtime.errors import ServiceError
from tests.harness.waiting import PATIENCE

SPEC = DraftSpec([1, 2], SamplingParams(), 8, 20)


class ScriptedDrafter:
    """Grows one node for every opened or committed sequence; records its calls."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.calls: list[tuple[str, Hashable]] = []
        self.fresh: list[Hashable] = []
        self.limits: dict[Hashable, int | None] = {}
        self.threads: set[int] = set()
        self.steps: list[list[Hashable]] = []
        self.held = threading.Event()
        self.held.set()
        self.awaits: tuple[str, Hashable] | None = None
        self.awaited = threading.Event()

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        if spec.max_tree_nodes > 1000:
            raise DrafterFullError("too large")
        self.calls.append(("open", key))
        self.fresh.append(key)

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        if committed_length == 99:
            raise OutOfSyncError("not so")
        self.calls.append(("commit", key))
        self.fresh.append(key)

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        self.limits[key] = max_tree_nodes

    def close(self, key: Hashable) -> None:
        self.calls.append(("close", key))
        if self.calls[-1] == self.awaits:
            self.awaited.set()

    @property
    def busy(self) -> bool:
        return bool(self.fresh)

    def grow(self) -> Growth:
        self.held.wait(PATIENCE)
        self.threads.add(threading.get_ident())
        keys, self.fresh = self.fresh, []
        self.steps.append(keys)
        if any(getattr(key, "sequence_id", 0) == 666 for key in keys):
            raise RuntimeError("the model broke")
        return Growth(keys, {key: Proposal(2, 1, [5], [0]) for key in keys}, 0.25)


class Listener:
    """Collects reports."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[DraftReport] = asyncio.Queue(1000)

    def __call__(self, report: DraftReport) -> None:
        self.reports.put_nowait(report)

    async def next(self) -> DraftReport:
        async with asyncio.timeout(10):
            return await self.reports.get()


async def test_streams_share_steps_and_get_their_own_reports() -> None:
    drafter = ScriptedDrafter()
    loop = DraftLoop(drafter, on_failure=lambda error: None)
    one, two = Listener(), Listener()
    keys = [SequenceKey(loop.attach(one), 1, 1), SequenceKey(loop.attach(two), 1, 1)]
    for key in keys:
        loop.open(key, SPEC)
    loop.start()
    for listener, key in zip((one, two), keys, strict=True):
        report = await listener.next()
        assert report.opened == [key]
        assert [each for each, _ in report.proposals] == [key]
        assert report.seconds == 0.25
    loop.commit([Commit(keys[0], 3, [5])])
    assert [key for key, _ in (await one.next()).proposals] == [keys[0]]
    assert two.reports.empty()
    await loop.stop()
    assert drafter.steps == [keys, [keys[0]]]
    assert threading.get_ident() not in drafter.threads


async def test_faults_close_one_sequence() -> None:
    drafter = ScriptedDrafter()
    loop = DraftLoop(drafter, on_failure=lambda error: None)
    listener = Listener()
    stream = loop.attach(listener)
    good, bad, full = (SequenceKey(stream, number, 1) for number in (1, 2, 3))
    loop.open(good, SPEC)
    loop.open(bad, SPEC)
    loop.open(full, DraftSpec([1], SamplingParams(), 1001, 20))
    loop.commit([Commit(bad, 99, [1]), Commit(good, 3, [1]), Commit(full, 2, [1])])
    loop.start()
    report = await listener.next()
    assert [(key, fault.reason_name) for key, fault in report.faults] == [
        (full, "AT_CAPACITY"),
        (bad, "OUT_OF_SYNC"),
    ]
    loop.commit([Commit(bad, 3, [1])])  # sent before the report arrived
    assert await loop.open_sequences() == 1
    await loop.stop()
    assert ("commit", good) in drafter.calls
    assert ("close", bad) in drafter.calls
    assert not {("commit", bad), ("commit", full)} & set(drafter.calls)


async def test_a_streams_end_closes_its_sequences_and_silences_its_listener() -> None:
    drafter = ScriptedDrafter()
    loop = DraftLoop(drafter, on_failure=lambda error: None)
    listener = Listener()
    stream = loop.attach(listener)
    loop.start()
    first, second = SequenceKey(stream, 1, 1), SequenceKey(stream, 2, 1)
    loop.open(first, SPEC)
    await listener.next()
    drafter.held.clear()
    loop.open(second, SPEC)
    loop.detach(stream)
    drafter.held.set()
    assert await loop.open_sequences() == 0
    await loop.stop()
    assert ("close", first) in drafter.calls
    assert (("open", second) in drafter.calls) == (("close", second) in drafter.calls)
    assert listener.reports.empty()


async def test_a_flood_of_commands_is_refused_and_a_streams_end_is_not() -> None:
    drafter = ScriptedDrafter()
    loop = DraftLoop(drafter, on_failure=lambda error: None)
    flooding, other = loop.attach(Listener()), loop.attach(Listener())
    loop.start()
    loop.open(SequenceKey(flooding, 1, 1), SPEC)
    assert await loop.open_sequences() == 1
    drafter.held.clear()
    loop.open(SequenceKey(other, 1, 1), SPEC)  # keeps the thread in its step
    with pytest.raises(ServiceError) as caught:
        for _ in range(200_000):
            loop.close([SequenceKey(flooding, 9, 9)])
    assert caught.value.reason_name == "AT_CAPACITY"
    drafter.awaits = ("close", SequenceKey(flooding, 1, 1))
    loop.detach(flooding)
    drafter.held.set()
    assert await asyncio.to_thread(drafter.awaited.wait, 10)
    assert await loop.open_sequences() == 1
    await loop.stop()


async def test_a_broken_model_is_reported() -> None:
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    loop = DraftLoop(ScriptedDrafter(), on_failure=failed.set_result)
    stream = loop.attach(Listener())
    loop.start()
    loop.open(SequenceKey(stream, 666, 1), SPEC)
    async with asyncio.timeout(10):
        assert str(await failed) == "the model broke"
    loop.detach(stream)
    await loop.stop()
