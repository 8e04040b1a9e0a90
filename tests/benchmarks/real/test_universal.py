"""The benchmark of the universal drafter: groups of requests, figures with and without loops, outputs that differ."""

import time
from dataclasses import dataclass

import pytest

from benchmarks.real.loops import before_loop
from benchmarks.real.universal import KINDS, LOOKUP, TARGETS, figures, first_draft, groups, take_turns
from benchmarks.real.ways import Asked
from draftwire import DrafterShare, SpeculationStats
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Arrival, Request
from tests.harness.services.service_process import ServiceProcess

ANSWERS = {
    (1,): tuple(range(41)),
    (2,): (*range(100, 121), *(7, 8, 9) * 20),
    (3,): (5, 6),
}
ASKED = [Asked(kind, (number,), 96, 0.0, number) for number, kind in enumerate(("chat", "code", "edit"), 1)]


@dataclass(frozen=True)
class Told:
    """A way whose answers are given, and come at a rate in chunks of some tokens."""

    name: str
    rate: float = 10.0
    chunk: int = 1
    drafter: str = LOOKUP
    wrong: bool = False

    async def run(self, asked: Asked) -> Request:
        tokens = ANSWERS[asked.prompt][: asked.max_tokens]
        arrivals, place = [Arrival(1.0, 1)], 1
        while place < len(tokens):
            taken = min(self.chunk, len(tokens) - place)
            place += taken
            arrivals.append(Arrival(1.0 + (place - 1) / self.rate, taken))
        steps = len(arrivals)
        shares = [DrafterShare(self.drafter, len(tokens), len(tokens) - steps)] if self.chunk > 1 else []
        stats = SpeculationStats(steps, len(tokens), len(tokens) * bool(shares), len(tokens) - steps, 0, shares)
        return Request(tuple(arrivals), (*tokens[:-1], -1) if self.wrong else tokens, stats, 0.5)


class Log(ServiceProcess):
    """A verifier that has logged some events."""

    def __init__(self, *events: dict[str, object]) -> None:
        self.logged = list(events)

    def events(self) -> list[dict[str, object]]:
        return self.logged


PLAIN, FAST = Told("plain"), Told("lookup", 20.0, 4)
AUTO = Told("auto", 40.0, 4, "local:draft")


async def test_figures_of_whole_answers_and_of_their_parts_before_loops() -> None:
    answers = await take_turns([PLAIN, FAST, AUTO], [[each] for each in ASKED], 2)
    assert len(answers) == 3 * 3 * 2
    found, rows = figures("gemma3", 0.0, answers)
    four = Spread(*map(pytest.approx, (4.0, 4.0, 4.0)), 2)
    for form in ("as they come", "loops cut"):
        at = f"gemma3, T = 0, {form}"
        assert found[f"{at}, auto, chat: speed-up"] == four
        assert found[f"{at}, auto, code: speed-up of an answer"] == four
        assert found[f"{at}, auto: speed-up over lookup, mean of the tasks"].median == pytest.approx(2.0)
        assert not [key for key in found if "edit" in key]  # too short to be timed
    assert found["gemma3, T = 0, as they come, auto, code: acceptance length"] == pytest.approx(81 / 21)
    assert found["gemma3, T = 0, loops cut, auto, code: acceptance length"] == pytest.approx(24 / 7, rel=0.01)
    assert found["gemma3, T = 0: share of answers that loop"] == pytest.approx(1 / 3, abs=1e-3)
    assert found["gemma3, T = 0: share of answers with drafts of a model"] == pytest.approx(1.0)
    assert found["gemma3, T = 0: outputs that differ"] == 0
    assert [(row["texts"], row["target"], row["T"], row["way"]) for row in rows][-1] == (
        "loops cut",
        "gemma3",
        0,
        "auto",
    )


async def test_outputs_that_differ_from_the_plain_ones_are_counted() -> None:
    wrong = Told("auto", 40.0, 4, wrong=True)
    found, _ = figures("gemma3", 0.7, await take_turns([wrong, PLAIN, FAST], [ASKED], 2))
    assert found["gemma3, T = 0.7: outputs that differ"] == 6
    assert found["gemma3, T = 0.7: share of answers with drafts of a model"] == 0.0


async def test_answers_that_are_all_too_short_have_no_rate() -> None:
    found, rows = figures("gemma3", 0.0, await take_turns([PLAIN, FAST, AUTO], [ASKED[2:]], 1))
    assert found["gemma3, T = 0, loops cut"] == "no answer has 8 tokens"
    assert rows == []


async def test_the_part_before_a_loop_ends_within_a_chunk() -> None:
    whole = await FAST.run(ASKED[1])
    part = before_loop(whole)
    assert part.token_ids == ANSWERS[2,][:24]
    assert [each.tokens for each in part.arrivals] == [1, *[4] * 5, 3]
    assert part.arrivals[-1].at == pytest.approx(1.0 + 23 / 20)
    assert (part.stats.steps, part.stats.tokens) == (7, 24)
    assert before_loop(await FAST.run(ASKED[0])) == await FAST.run(ASKED[0])


def test_requests_at_once_are_of_one_kind() -> None:
    asked = [Asked(kind, (number,), 96, 0.0, number) for kind in KINDS for number in range(3)]
    found = list(groups(asked, 2))
    assert [len(each) for each in found] == [2, 1] * len(KINDS)
    assert [each for group in found for each in group] == asked
    assert all(len({each.task for each in group}) == 1 for group in found)


@pytest.mark.parametrize(
    ("way", "event", "comes"),
    [
        (AUTO, {"event": "drafters chosen", "drafters": [LOOKUP, "local:draft"]}, True),
        (FAST, {"event": "drafters chosen", "drafters": [LOOKUP]}, False),
        (FAST, {"event": "drafters not chosen"}, False),
    ],
)
async def test_the_first_draft_of_a_model_is_waited_for(way: Told, event: dict[str, object], comes: bool) -> None:
    begun = time.perf_counter()
    seconds = await first_draft(way, (1,), Log(event), begun)
    assert (seconds is not None) == comes


def test_a_real_target_is_as_it_is_published() -> None:
    assert [name for name, each in TARGETS.items() if each.millions is None] == ["gemma3", "smollm2"]
    assert {each.millions for each in TARGETS.values()} == {None, 2000.0}
