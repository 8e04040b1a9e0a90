"""The state machine: whatever happens in whatever order, the protocol keeps its promises."""

from __future__ import annotations

import random
import sys
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from draftwire.v1.verifier_service_pb2 import GenerateRequest
from tests.harness.world import accidents, invariants
from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.events import event
from tests.harness.world.held_calls import Direction, HeldCall
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.request_choices import LONG_REQUESTS, MEMBERS, NAMES, REQUESTS
from tests.harness.world.world import Drafter, World

DIRECTIONS: list[Direction] = ["up", "down"]
PLACES = range(32)
_MOST_REQUESTS = 6
_MOST_ORDERS = 3


def _may_ask(machine: ProtocolMachine) -> bool:
    return sum(not asked.ended for asked in machine.world.requests) < _MOST_REQUESTS


def _may_order(machine: ProtocolMachine) -> bool:
    return sum(not order.done() for order in machine.world.orders) < _MOST_ORDERS


class ProtocolMachine(RuleBasedStateMachine):
    """Plays one world. A rule does nothing if there is nothing for it to act on."""

    def __init__(
        self, checkpoints: Checkpoints, reference: PlainReference, seen: Counter[str], *, message_seconds: float = 0.0
    ) -> None:
        """message_seconds: see World."""
        super().__init__()
        self._error_before = sys.exc_info()[1]
        self.world = World(checkpoints, reference, seen, message_seconds=message_seconds)
        self.seen = seen

    def _drafter(self, name: str) -> Drafter:
        return self.world.drafters[name]

    def _call(self, place: int, direction: Direction, messages: int = 1) -> HeldCall | None:
        """Picks a call that has at least `messages` messages in transit."""
        calls = [call for call in self.world.calls() if call.held(direction) >= messages]
        return calls[place % len(calls)] if calls else None

    @initialize(
        attached=st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1),
        asked=st.lists(REQUESTS.strategy(), min_size=1, max_size=4),
    )
    def begin(self, attached: list[str], asked: list[GenerateRequest]) -> None:
        for name in attached:
            self.world.attach(name)
        self.world.drain()
        for request in asked:
            self.world.ask(request)

    # Clients

    @event(_may_ask, request=REQUESTS)
    def ask(self, request: GenerateRequest) -> None:
        self.world.ask(request)

    @event(place=PLACES)
    def cancel(self, place: int) -> None:
        asked = [each for each in self.world.requests if not each.ended]
        if asked:
            self.world.cancel(asked[place % len(asked)])

    # Time and work

    @event(count=range(1, 4))
    def go_on(self, count: int) -> None:
        """Takes turns: the verifier's steps find the proposals that answer the last verdict."""
        for _ in range(count):
            self.world.cycle()

    @event(seed=range(1001), count=range(1, 21))
    def go_on_at_random(self, seed: int, count: int) -> None:
        """Runs each part at its own speed, so that several proposals and verdicts cross in transit."""
        rng = random.Random(seed)
        for _ in range(count):
            calls = self.world.calls()
            if rng.random() < 0.15 or not calls:
                self.world.step()
            elif rng.random() < 0.5:
                self.world.grow(self._drafter(rng.choice(NAMES)))
            else:
                self.world.deliver(rng.choice(calls), rng.choice(["up", "down"]), rng.randrange(1, 4))

    @event(count=range(1, 3))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @event(seconds=[0.5, 5.0, 60.0])
    def begin_step(self, seconds: float) -> None:
        self.world.begin_step(seconds)

    @event(name=NAMES, count=range(1, 4))
    def grow(self, name: str, count: int) -> None:
        for _ in range(count):
            self.world.grow(self._drafter(name))

    @event(place=PLACES, direction=DIRECTIONS, count=range(1, 4))
    def deliver(self, place: int, direction: Direction, count: int) -> None:
        if (call := self._call(place, direction)) is not None:
            self.world.deliver(call, direction, count)

    @event()
    def rest(self) -> None:
        self.world.rest()

    @event(seconds=[0.05, 0.5, 3.0, 12.0])
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # Drafters that come and go

    @event(_may_order, name=MEMBERS, attached=[True, True, False])
    def attach_or_detach(self, name: str, attached: bool) -> None:
        if attached:
            self.world.attach(name)
        else:
            self.world.detach(name)

    @event(_may_order, place=PLACES, new=MEMBERS, request=LONG_REQUESTS, before=range(4), after=range(7))
    def swap(self, place: int, new: str, request: GenerateRequest, before: int, after: int) -> None:
        """Swaps preferably a drafter that has sequences, and preferably for a different one."""
        if all(asked.ended for asked in self.world.requests):
            self.world.ask(request)
        self.go_on(before)
        attached = sorted(self.world.verifier.pool.describe(), key=lambda drafter: -drafter.sequences)
        busy = [drafter.name for drafter in attached if drafter.sequences] or [drafter.name for drafter in attached]
        old = busy[place % len(busy)] if busy else "good"
        if new == old.removesuffix(":1") and place % 4:
            new = MEMBERS[(MEMBERS.index(new) + 1) % len(MEMBERS)]
        self.world.swap(old, new)
        self.go_on(after)

    @event(name=NAMES, restarts=[False, True])
    def crash(self, name: str, restarts: bool) -> None:
        drafter = self._drafter(name)
        if drafter.up:
            self.world.crash(drafter, restarts=restarts)
            self.world.pass_time(0.5)
        else:
            self.world.restart(drafter)

    # Accidents

    @event(place=PLACES, tokens=range(1, 6))
    def split_opening(self, place: int, tokens: int) -> None:
        if (call := self._call(place, "up")) is not None:
            self.seen["openings in chunks"] += self.world.split_opening(call, tokens)

    @event(place=PLACES, direction=DIRECTIONS, index=PLACES)
    def duplicate(self, place: int, direction: Direction, index: int) -> None:
        if (call := self._call(place, direction)) is not None:
            accidents.duplicate(call, direction, index % call.held(direction))
            self.seen["duplicates"] += 1

    @event(place=PLACES, direction=DIRECTIONS, index=PLACES)
    def reorder(self, place: int, direction: Direction, index: int) -> None:
        if (call := self._call(place, direction, 2)) is not None:
            call.swap(direction, index % (call.held(direction) - 1))
            self.seen["reordered"] += 1

    @event(place=PLACES, direction=DIRECTIONS, index=PLACES)
    def lose(self, place: int, direction: Direction, index: int) -> None:
        if (call := self._call(place, direction)) is not None:
            accidents.lose(call, direction, index % call.held(direction))
            self.seen["messages lost"] += 1

    @event(place=PLACES, kind=sorted(accidents.LIES), seed=PLACES)
    def lie(self, place: int, kind: str, seed: int) -> None:
        for drafter in self.world.drafters.values():
            self.world.grow(drafter)
        if (call := self._call(place, "down")) is not None:
            self.seen["lies"] += accidents.lie(call, kind, random.Random(seed))

    @event(place=PLACES, seed=PLACES)
    def mislead(self, place: int, seed: int) -> None:
        self.world.step()
        if (call := self._call(place, "up")) is not None:
            self.seen["misled"] += accidents.mislead(call, random.Random(seed))

    # Invariants

    @invariant()
    def everything_holds(self) -> None:
        invariants.check(self.world)

    def teardown(self) -> None:
        if sys.exc_info()[1] is not self._error_before:
            self.world.abandon()  # this example has already failed
            return
        try:
            self.world.close()
        except BaseException:
            self.world.abandon()
            raise
