"""A real verifier and real drafters in one process, in which nothing happens unless a test makes it happen.

The event loop, the time, the engines' threads and the messages between the services wait for the test. Everything
else is production code: requests, pool, links, conversations, engines and models.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import structlog

from drafter_service.conversation.gathered_proposals import GatheredProposals
from draftwire.v1 import drafter_pool_service_pb2 as pool_pb
from draftwire.v1.drafter_service_pb2 import OpenSequence
from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model import draft_model
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.engine.sequence import Sequence, SequenceSpec
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.kv.shared_prefix import SharedPrefix
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.pool.standing.circuit_breaker import CircuitBreaker
from draftwire_core.pool.standing.standings import DrafterClocks
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.message_stream import MessageStream, StreamBroken
from tests.harness.collected import collected
from tests.harness.services import loaded_models
from tests.harness.services.in_process_drafter import InProcessDrafter, in_process_drafter
from tests.harness.services.in_process_verifier import InProcessVerifier, Output, in_process_verifier
from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.held_calls import Direction, HeldCall
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.simulated_loop import SimulatedLoop, SteppedThread, stepped_threads
from verifier_service.admission.expected_wait import ExpectedWait
from verifier_service.admission.flooders import Flooders
from verifier_service.running.running_request import RunningRequest

T = TypeVar("T")

REQUEST_REASONS = ("AT_CAPACITY", "DRAFTER_NOT_FOUND")
"""Reasons for which a request of these tests may be refused."""
POOL_REASONS = ("DRAFTER_NOT_FOUND", "DRAFTER_UNREACHABLE", "INVALID_FIELD", "HANDSHAKE_EXPECTED", "BUSY")
"""Reasons for which a call to the pool may be refused: INVALID_FIELD if a drafter is swapped for itself,
HANDSHAKE_EXPECTED if its handshake was lost or came twice, BUSY if another call is changing it."""
MAX_TREE_NODES = 8
LOCAL = "local:suffix?min=1&shared=true"
"""Name and address of a drafter inside the verifier. It learns from earlier requests, which are much alike here."""
_VERIFIER_SLOTS = 110
"""Room for two or three requests, so that some wait."""
_DRAFTER_SLOTS = 128
_MOST_ROUNDS = 2000
"""Rounds within which all pending work must end; about as many simulated seconds pass in them."""


@dataclass
class Drafter:
    """One drafter process and its state."""

    name: str
    service: InProcessDrafter
    drafting: DraftModelDrafter
    drafts: dict[Any, Any]
    """The drafter's state for each opening."""
    thread: SteppedThread
    calls: list[HeldCall] = field(default_factory=list)
    up: bool = True

    @property
    def address(self) -> str:
        return f"{self.name}:1"

    async def converse(self, stream: MessageStream[Any, Any]) -> None:
        """Takes a call."""
        call = HeldCall(stream)
        self.calls.append(call)
        try:
            await call.carry(self.service.servicer.converse)
        finally:
            self.calls.remove(call)


@dataclass
class Request:
    """A request and its outcome so far."""

    request: GenerateRequest
    plain: list[int]
    output: Output = field(default_factory=Output)
    running: RunningRequest | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    refused: str | None = None

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()


_MEASURED = ("draftwire_core", "drafter_service", "verifier_service")
"""Packages whose modules measure time: what drafting, steps and waiting take decides what they do."""
_CLOCKED: tuple[Callable[..., None], ...] = (ExpectedWait.__init__, Flooders.__init__, CircuitBreaker.__init__)
"""Functions whose last default is a clock."""


def _measuring() -> list[str]:
    """Names of the loaded modules of those packages that read the machine's clocks."""
    return [
        name
        for name, module in sys.modules.items()
        if name.split(".")[0] in _MEASURED and vars(module).get("time") is time
    ]


class World:
    """The whole simulated world and the methods that drive it. Close or abandon it at the end."""

    def __init__(
        self, checkpoints: Checkpoints, reference: PlainReference, seen: Counter[str], *, message_seconds: float = 0.0
    ) -> None:
        """seen: counts what happened, so that a test can tell whether it has tested anything. message_seconds: of
        processor time that each message takes the verifier, by the clock that it is given."""
        self.reference = reference
        self.seen = seen
        self.requests: list[Request] = []
        self.orders: list[asyncio.Task[None]] = []
        """Calls to the pool that are in progress or have ended."""
        self._collected = ExitStack()
        self._collected.enter_context(collected())
        self.loop = SimulatedLoop()
        self._patches = ExitStack()
        self.threads = self._patches.enter_context(stepped_threads())
        self.log = self._patches.enter_context(structlog.testing.capture_logs())
        self.sequences: dict[int, Sequence] = {}
        """The engine's state for each request, including ended ones."""
        self.gathered: list[GatheredProposals] = []
        """What each stream of a drafter gathers."""
        self._made: list[Any] = []
        self._watch()
        self._services = AsyncExitStack()
        self.drafters: dict[str, Drafter] = {}
        self.unseen: list[dict[str, Any]] = []
        """Unhandled exceptions, as asyncio reports them."""
        looks = count()
        self._clocks = DrafterClocks(spent=lambda: message_seconds * next(looks))
        self.loop.run_until_complete(self._start(checkpoints))
        self.loop.set_exception_handler(lambda _, context: self.unseen.append(context))

    async def _start(self, checkpoints: Checkpoints) -> None:
        self.verifier: InProcessVerifier = await self._services.enter_async_context(
            in_process_verifier(
                checkpoints.target,
                slots=_VERIFIER_SLOTS,
                max_sequences=3,
                max_waiting=2,
                max_tree_nodes=MAX_TREE_NODES,
                clocks=self._clocks,
            )
        )
        self.engine: Any = self.verifier.engine
        self.engine.wait_seconds = lambda: 0.0  # the test decides when to step
        self.thread = self.threads[-1]
        self.pool = DrafterPoolServicer(self.verifier.pool)
        for name, checkpoint in checkpoints.drafts.items():
            made = len(self._made)
            service = await self._services.enter_async_context(
                in_process_drafter(checkpoint, kv_slots=_DRAFTER_SLOTS, max_sequences=3, max_tree_nodes=8)
            )
            drafting, drafts = self._made[made]
            drafter = Drafter(name, service, drafting, drafts, self.threads[-1])
            self.drafters[name] = drafter
            self.verifier.network.listen(drafter.address, drafter.converse)

    def _watch(self) -> None:
        """Records the state of engine and drafters independently of their own bookkeeping. Also empties the KV
        caches, whatever the previous world left in them."""
        sequences, made, gathered, seen = self.sequences, self._made, self.gathered, self.seen

        class NotedGathered(GatheredProposals):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                gathered.append(self)

            def _send_gathered(self) -> None:
                seen["steps gathered"] += self._steps
                super()._send_gathered()

        class NotedSequence(Sequence):
            def __init__(self, spec: SequenceSpec, prefix: SharedPrefix | None = None) -> None:
                super().__init__(spec, prefix)
                sequences[spec.sequence_id] = self

        class NotedDraft(draft_model.ModelDraft):
            last: Any = None

            def __init__(self, spec: DraftSpec, window: ContextWindow | None = None) -> None:
                super().__init__(spec, window)
                NotedDraft.last = self

        plain = DraftModelDrafter.__init__, DraftModelDrafter.open, DraftModelDrafter.close
        noted: dict[DraftModelDrafter, dict[Any, Any]] = {}

        def make(self: DraftModelDrafter, model: PackedModel, growth: TreeGrowth | None = None) -> None:
            plain[0](self, model, growth)
            noted[self] = {}
            made.append((self, noted[self]))

        def open_(self: DraftModelDrafter, key: Hashable, spec: DraftSpec) -> None:
            plain[1](self, key, spec)
            noted[self][key] = NotedDraft.last

        def close(self: DraftModelDrafter, key: Hashable) -> None:
            plain[2](self, key)
            noted[self].pop(key, None)

        # A loaded machine must not decide which drafters pay: an example would then not be the same twice.
        now = self.loop.time
        clock = SimpleNamespace(perf_counter=now, thread_time=now, monotonic=now, time=time.time, sleep=time.sleep)
        for patch in (
            *(mock.patch(f"{module}.time", clock) for module in _measuring()),
            *(mock.patch.object(each, "__defaults__", (now,)) for each in _CLOCKED),
            mock.patch("draftwire_core.engine.engine.verification_engine.Sequence", NotedSequence),
            mock.patch("drafter_service.conversation.drafting_session.GatheredProposals", NotedGathered),
            mock.patch("draftwire_core.engine.drafters.model.draft_model.ModelDraft", NotedDraft),
            mock.patch.multiple(DraftModelDrafter, __init__=make, open=open_, close=close),
        ):
            self._patches.enter_context(patch)
        for models in loaded_models._idle.values():
            for model in models:
                model.pool = SlotPool(model.pool.capacity)

    # Events

    def ask(self, request: GenerateRequest) -> None:
        """Sends a client's request."""
        asked = Request(request, self.reference.of(request))
        asked.task = self.loop.create_task(self._follow(asked))
        self.requests.append(asked)
        self.loop.settle()

    async def _follow(self, asked: Request) -> None:
        try:
            async with self.verifier.running(asked.request) as running:
                asked.running = running
                async for event in running.events():
                    asked.output.take(event)
        except ServiceError as error:
            if error.reason_name not in REQUEST_REASONS:
                raise
            asked.refused = error.reason_name

    def cancel(self, asked: Request) -> None:
        """Cancels a client's request."""
        assert asked.task is not None
        asked.cancelled = True
        asked.task.cancel()
        self.loop.settle()

    def order(self, call: Coroutine[Any, Any, Any]) -> None:
        """Starts a management call to the pool."""

        async def made() -> None:
            try:
                answer = await call
            except ServiceError as error:
                if error.reason_name not in POOL_REASONS:
                    raise
                self.seen[f"refused: {error.reason_name}"] += 1
            else:
                self.seen["moved while running"] += getattr(answer, "moved_sequences", 0)

        self.orders.append(self.loop.create_task(made()))
        self.loop.settle()

    def attach(self, name: str) -> None:
        request = pool_pb.AttachDrafterRequest(address=self._address(name), name=name)
        self.order(self.pool.AttachDrafter(request, None))

    def detach(self, name: str) -> None:
        self.order(self.pool.DetachDrafter(pool_pb.DetachDrafterRequest(name=name), None))

    def swap(self, old: str, new: str) -> None:
        request = pool_pb.SwapDrafterRequest(old_name=old, new_name=self._known(new))
        self.order(self.pool.SwapDrafter(request, None))

    def _known(self, name: str) -> str:
        """Returns a drafter's name if it is attached, otherwise its address, which attaches it."""
        return name if self.verifier.state(name) is not None else self._address(name)

    def _address(self, name: str) -> str:
        return name if name == LOCAL else self.drafters[name].address

    def step(self) -> None:
        """Runs the verifier's next unit of work."""
        self.thread.turn()
        self.loop.settle()

    def grow(self, drafter: Drafter) -> None:
        """Runs a drafter's next unit of work."""
        drafter.thread.turn()
        self.loop.settle()

    def calls(self) -> list[HeldCall]:
        """Returns all open calls, in a fixed order."""
        return [call for drafter in self.drafters.values() for call in drafter.calls]

    def deliver(self, call: HeldCall, direction: Direction, count: int = 1) -> None:
        """Delivers messages."""
        way = call.up if direction == "up" else call.down
        for _ in range(min(count, len(way))):
            if call.over or not way:
                break
            self._let(call.deliver(direction))

    def deliver_all(self) -> bool:
        """Delivers all messages in transit; returns whether there were any."""
        anything = False
        for call in self.calls():
            for direction in ("up", "down"):
                anything = anything or bool(call.up if direction == "up" else call.down)
                self.deliver(call, direction, 1 << 20)
        return anything

    def split_opening(self, call: HeldCall, tokens: int) -> bool:
        """Splits an opening in transit into chunks, as a long one is sent."""
        for index, sent in enumerate(call.up):
            if sent is None:
                continue
            message = call.message("up", index)
            if message.WhichOneof("message") == "open" and len(message.open.token_ids) > tokens:
                chunks = []
                for first in range(0, len(message.open.token_ids), tokens):
                    chunk = type(message)(open=OpenSequence())
                    chunk.CopyFrom(message)
                    chunk.open.offset = message.open.offset + first
                    chunk.open.token_ids[:] = message.open.token_ids[first : first + tokens]
                    chunks.append(chunk)
                call.replace("up", index, chunks, harmless=True)
                return True
        return False

    def crash(self, drafter: Drafter, *, restarts: bool) -> None:
        """Crashes a drafter: it loses its connections and all state, and takes calls again at once or later."""
        drafter.up = restarts
        self._let(self.verifier.network.kill(drafter.address))
        if restarts:
            self.verifier.network.listen(drafter.address, drafter.converse)

    def restart(self, drafter: Drafter) -> None:
        """Makes a crashed drafter take calls again."""
        drafter.up = True
        self.verifier.network.listen(drafter.address, drafter.converse)

    def begin_step(self, seconds: float) -> None:
        """Lets the drafters gather their nodes, as while a step runs that takes so long."""
        self.loop.call_soon(self.verifier.pool.step_begun, seconds)
        self.loop.settle()

    @property
    def gathers(self) -> bool:
        """Whether a drafter holds nodes back."""
        return any(each._gathered for each in self.gathered)

    def pass_time(self, seconds: float) -> None:
        self.loop.advance(seconds)

    def cycle(self) -> None:
        """Runs one round of normal operation."""
        self.deliver_all()
        for drafter in self.drafters.values():
            self.grow(drafter)
        self.deliver_all()
        self.step()

    def _let(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Awaits a coroutine whose event may come too late."""

        async def late() -> None:
            try:
                await coroutine
            except StreamBroken:
                self.seen["came too late"] += 1

        self.loop.create_task(late())
        self.loop.settle()

    # The end

    def drain(self) -> None:
        """Runs everything until all requests and calls have ended."""
        waiting = [task for task in (*(asked.task for asked in self.requests), *self.orders) if task is not None]
        for _ in range(_MOST_ROUNDS):
            if all(task.done() for task in waiting):
                break
            busy = self.deliver_all() or self.engine.running or not self.thread.idle
            self.cycle()
            self.pass_time(0.01 if busy else 1.0)
        for task in waiting:
            assert task.done(), f"{task} never ends"
            if not task.cancelled():
                task.result()

    def rest(self) -> None:
        """Runs everything except the verifier's steps, until nothing is pending."""
        for _ in range(_MOST_ROUNDS):
            busy = self.deliver_all() or not self.thread.idle
            self.thread.listen()
            self.loop.settle()
            for drafter in self.drafters.values():
                busy = busy or not drafter.thread.idle or drafter.drafting.busy
                self.grow(drafter)
            if not busy and not self.gathers:
                return
            if not busy:
                for each in self.gathered:
                    each.release()
        raise AssertionError("the drafters never come to rest")

    def close(self) -> None:
        """Runs everything to its end, and checks that every output is complete and every slot free."""
        self.drain()
        for asked in self.requests:
            if not asked.cancelled and asked.refused is None:
                assert asked.output.token_ids == asked.plain, "the output differs from plain decoding"
                self.seen["requests"] += 1
                self.seen["accepted"] += asked.output.finished.speculation.accepted_tokens
        for drafter in self.verifier.pool.describe():
            self.detach(drafter.name)
        self.drain()
        self.rest()
        self.pass_time(5.0)  # links to drafters that do not answer give up
        self.rest()
        self.orders.append(self.loop.create_task(self._services.aclose()))
        self.drain()
        self._collected.close()
        assert not self.unseen, self.unseen
        assert self.engine.model.pool.used == 0, "the verifier leaks slots"
        for each in self.drafters.values():
            assert each.drafting.model.pool.used == 0, f"drafter {each.name} leaks slots"
            assert not each.calls, f"drafter {each.name} keeps a call"
        self.abandon()

    def abandon(self) -> None:
        """Drops everything in its current state."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.settle()
        self._patches.close()
        self.loop.close()
        self._collected.close()
