"""The choice of a drafter by the worth of its time."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from draftwire_core.pool.routing.roster import DrafterChoice
from draftwire_core.pool.standing.drafter_stats import DraftingSpeed


def drafter(name: str, accepted_per_second: float | None, sequences: int = 0, *, paused: bool = False) -> Any:
    """Returns the part of a drafter that the choice reads; a speed of None is unmeasured."""
    speed = DraftingSpeed()
    if accepted_per_second is not None:
        for _ in range(32):
            speed.count_step(0.001)
        speed.count_accepted(round(accepted_per_second * speed._seconds))
    policy = SimpleNamespace(paused=paused)
    return SimpleNamespace(
        name=name, speed=speed, sequences=sequences, goes_first=not speed.measured, pause_policy=policy
    )


def shares(*drafters: Any, seed: int = 1, choices: int = 4000) -> dict[str, float]:
    choice = DrafterChoice(random.Random(seed))
    chosen = Counter(choice.among(drafters).name for _ in range(choices))
    return {name: count / choices for name, count in chosen.items()}


def test_nobody() -> None:
    assert DrafterChoice(random.Random(1)).among([]) is None


def test_alone() -> None:
    assert shares(drafter("a", 0.0)) == {"a": 1.0}


def test_the_best_and_a_little_of_the_others() -> None:
    found = shares(drafter("bad", 1000), drafter("good", 3000), drafter("worse", 500))
    assert 0.93 < found["good"] < 0.97
    assert 0.01 < found["bad"] < 0.04
    assert 0.01 < found["worse"] < 0.04


def test_those_that_were_not_measured_come_first_and_evenly() -> None:
    assert shares(drafter("known", 9000), drafter("new", None), drafter("newer", None, sequences=1)) == {"new": 1.0}
    assert shares(drafter("known", 9000), drafter("new", None, sequences=2), drafter("newer", None, sequences=1)) == {
        "newer": 1.0
    }


def test_what_counts_is_what_is_left_for_a_sequence_more() -> None:
    assert shares(drafter("good", 3000, sequences=9), drafter("free", 1000))["free"] > 0.9
    assert shares(drafter("good", 3000, sequences=1), drafter("free", 1000))["good"] > 0.9


def test_one_that_is_paused_is_tried_but_does_not_win() -> None:
    paused = drafter("fast", 9000, paused=True)
    found = shares(paused, drafter("slow", 100, sequences=20))
    assert 0.03 < found["fast"] < 0.07, "which pays for its next trial"
    assert shares(paused, drafter("slow", 100, paused=True))["fast"] > 0.9


def test_the_same_seed_chooses_the_same() -> None:
    drafters = [drafter(str(index), 1000 + index) for index in range(5)]
    first, second = (DrafterChoice(random.Random(7)) for _ in range(2))
    assert [first.among(drafters) for _ in range(200)] == [second.among(drafters) for _ in range(200)]
