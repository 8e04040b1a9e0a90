"""Ways that take turns on the same requests: loops are cut, differences counted, ways that fail left out."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.environment import PeerUnavailable
from benchmarks.real.__main__ import LEAST_TOKENS, take_turns, tasks_of, without_loops
from benchmarks.real.ways import Asked, Ours
from draftwire_tools.turns import Arrival, Request

ANSWERS: dict[tuple[int, ...], tuple[int, ...]] = {
    (1,): tuple(range(40)),
    (2,): (*range(100, 120), *(7, 8, 9) * 20),
    (3,): (5, 6),
}


@dataclass(frozen=True)
class Told(Ours):
    """A way whose answers are given."""

    client: Any = None
    drafters: tuple[str, ...] = ()
    asked: list[Asked] = field(default_factory=list)
    wrong: bool = False

    async def run(self, asked: Asked) -> Request:
        self.asked.append(asked)
        tokens = ANSWERS[asked.prompt][: asked.max_tokens]
        if self.wrong:
            tokens = (*tokens[:-1], -1)
        return Request((Arrival(0.0, 1), Arrival(1.0, len(tokens) - 1)), tokens)


class Failing(Told):
    """A way that fails."""

    async def run(self, asked: Asked) -> Request:
        raise PeerUnavailable("it has ended")


ASKED = [Asked(task, (number,), 60, 0.0, number) for number, task in enumerate(("chat", "edit", "retrieval"), 1)]


async def test_loops_are_cut_and_short_answers_left_out() -> None:
    asked, kept, said = await without_loops(Told("plain"), ASKED)
    assert [(each.task, each.max_tokens) for each in asked] == [("chat", 60), ("edit", 23)]
    assert kept == [ANSWERS[1,], ANSWERS[2,][:23]]
    assert said.startswith("63 of 102 tokens kept; of 3 answers 1 loop and are cut, 2 end by themselves, 1 have fewer")
    assert tasks_of(asked) == ["chat", "edit"]
    assert len(ANSWERS[3,]) < LEAST_TOKENS


async def test_all_ways_do_the_same_requests() -> None:
    asked, kept, _ = await without_loops(Told("plain"), ASKED)
    ways = [Told("plain"), Told("lookup"), Told("wrong", wrong=True), Failing("broken")]
    failures: dict[str, object] = {}
    measured, differing = await take_turns(ways, asked, kept, 2, failures)
    assert [way.asked for way in ways[:3]] == [asked * 2] * 3
    assert differing == 4
    assert failures == {"broken": "not measured: it has ended"}
    assert set(measured.ways) == {"plain", "lookup", "wrong"}
    assert measured.speed_up("lookup", "edit").median == 1.0
