"""The state machine: whatever happens in whatever order, the protocol keeps its promises."""

from __future__ import annotations

import random
import sys
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import DraftPlanning, SpeculationOptions
from draftwire.v1.verifier_service_pb2 import GenerateRequest, TokenIds
from tests.harness.world import accidents, invariants
from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.held_calls import Direction, HeldCall
from tests.harness.world.plain_reference import MOST_TOKENS, PlainReference
from tests.harness.world.world import LOCAL, Drafter, World

PROMPTS = [[5], [7, 3], [9, 14, 23, 42, 7], [11, 60, 8, 33, 21, 40, 6, 19, 50, 28, 12, 9]]
SAMPLINGS = [
    SamplingParams(temperature=0.0, seed=7),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=1.2, top_p=0.95, seed=2),
]
NAMES = ["good", "poor", "wild"]
MEMBERS = [*NAMES, LOCAL]
names = st.sampled_from(NAMES)
members = st.sampled_from(MEMBERS)
_MOST_REQUESTS = 6
_MOST_ORDERS = 3


def _requests(max_tokens: list[int], drafters: list[str | None]) -> st.SearchStrategy[GenerateRequest]:
    return st.builds(
        lambda prompt, sampling, max_tokens, ignore_eos, speculation: GenerateRequest(
            token_ids=TokenIds(ids=prompt),
            sampling=sampling,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            speculation=speculation,
        ),
        prompt=st.sampled_from(PROMPTS),
        sampling=st.sampled_from(SAMPLINGS),
        max_tokens=st.sampled_from(max_tokens),
        ignore_eos=st.sampled_from([True, True, False]),
        speculation=st.builds(
            SpeculationOptions,
            drafter=st.sampled_from(drafters),
            drafters=st.sampled_from([None, 2]),
            max_draft_tokens=st.sampled_from([None, None, None, None, 0, 2]),
            planning=st.sampled_from([None, None, None, DraftPlanning.DRAFT_PLANNING_ALWAYS]),
        ),
    )


requests = _requests([MOST_TOKENS, MOST_TOKENS, 9, 2, 1], [None, None, None, *MEMBERS])
long_requests = _requests([MOST_TOKENS], [None])
directions = st.sampled_from(["up", "down"])
places = st.integers(0, 31)


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

    @initialize(attached=st.lists(members, unique=True, min_size=1), asked=st.lists(requests, min_size=1, max_size=4))
    def begin(self, attached: list[str], asked: list[GenerateRequest]) -> None:
        for name in attached:
            self.world.attach(name)
        self.world.drain()
        for request in asked:
            self.world.ask(request)

    # Clients

    @precondition(lambda self: sum(not asked.ended for asked in self.world.requests) < _MOST_REQUESTS)
    @rule(request=requests)
    def ask(self, request: GenerateRequest) -> None:
        self.world.ask(request)

    @rule(place=places)
    def cancel(self, place: int) -> None:
        asked = [each for each in self.world.requests if not each.ended]
        if asked:
            self.world.cancel(asked[place % len(asked)])

    # Time and work

    @rule(count=st.integers(1, 3))
    def go_on(self, count: int) -> None:
        """Takes turns: the verifier's steps find the proposals that answer the last verdict."""
        for _ in range(count):
            self.world.cycle()

    @rule(seed=st.integers(0, 1000), count=st.integers(1, 20))
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

    @rule(count=st.integers(1, 2))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @rule(name=names, count=st.integers(1, 3))
    def grow(self, name: str, count: int) -> None:
        for _ in range(count):
            self.world.grow(self._drafter(name))

    @rule(place=places, direction=directions, count=st.integers(1, 3))
    def deliver(self, place: int, direction: Direction, count: int) -> None:
        if (call := self._call(place, direction)) is not None:
            self.world.deliver(call, direction, count)

    @rule()
    def rest(self) -> None:
        self.world.rest()

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0, 12.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # Drafters that come and go

    @precondition(lambda self: sum(not order.done() for order in self.world.orders) < _MOST_ORDERS)
    @rule(name=members, attached=st.sampled_from([True, True, False]))
    def attach_or_detach(self, name: str, attached: bool) -> None:
        if attached:
            self.world.attach(name)
        else:
            self.world.detach(name)

    @precondition(lambda self: sum(not order.done() for order in self.world.orders) < _MOST_ORDERS)
    @rule(place=places, new=members, request=long_requests, before=st.integers(0, 3), after=st.integers(0, 6))
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

    @rule(name=names, restarts=st.booleans())
    def crash(self, name: str, restarts: bool) -> None:
        drafter = self._drafter(name)
        if drafter.up:
            self.world.crash(drafter, restarts=restarts)
            self.world.pass_time(0.5)
        else:
            self.world.restart(drafter)

    # Accidents

    @rule(place=places, tokens=st.integers(1, 5))
    def split_opening(self, place: int, tokens: int) -> None:
        if (call := self._call(place, "up")) is not None:
            self.seen["openings in chunks"] += self.world.split_opening(call, tokens)

    @rule(place=places, direction=directions, index=places)
    def duplicate(self, place: int, direction: Direction, index: int) -> None:
        if (call := self._call(place, direction)) is not None:
            accidents.duplicate(call, direction, index % call.held(direction))
            self.seen["duplicates"] += 1

    @rule(place=places, direction=directions, index=places)
    def reorder(self, place: int, direction: Direction, index: int) -> None:
        if (call := self._call(place, direction, 2)) is not None:
            call.swap(direction, index % (call.held(direction) - 1))
            self.seen["reordered"] += 1

    @rule(place=places, direction=directions, index=places)
    def lose(self, place: int, direction: Direction, index: int) -> None:
        if (call := self._call(place, direction)) is not None:
            accidents.lose(call, direction, index % call.held(direction))
            self.seen["messages lost"] += 1

    @rule(place=places, kind=st.sampled_from(sorted(accidents.LIES)), seed=places)
    def lie(self, place: int, kind: str, seed: int) -> None:
        for drafter in self.world.drafters.values():
            self.world.grow(drafter)
        if (call := self._call(place, "down")) is not None:
            self.seen["lies"] += accidents.lie(call, kind, random.Random(seed))

    @rule(place=places, seed=places)
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
