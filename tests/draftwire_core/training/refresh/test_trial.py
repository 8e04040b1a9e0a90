"""The outcome of a checkpoint's trial, decided by the traffic."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire import Rollout, RolloutSide, ServedRequest, SpeculationStats, StepCost
from draftwire.errors import DeadlineExceededError, RolloutNotFoundError
from draftwire_core.training.refresh.trial import TrialOptions, Verdict, try_out

CANARY = "canary:1"


COSTS = [StepCost(1, 0.010), StepCost(8, 0.017)]
"""Each further row costs 1 ms."""


def served(accepted: int, *drafters: str) -> ServedRequest:
    stats = SpeculationStats(
        steps=10, tokens=20, draft_tokens=30, accepted_tokens=accepted, stale_nodes=0, drafters=[], hits=0
    )
    return ServedRequest([1], [2] * 20, stats, list(drafters))


class Pool:
    """The client's drafters: records the calls, and answers as a test specifies."""

    def __init__(self, load: str = "serving", ends: str = "", drafting: tuple[float, float] = (0.0, 0.0)) -> None:
        """drafting: seconds of both sides, for a hundred steps."""
        self.asked: list[str] = []
        self._drafting = drafting
        self._load = load
        self._state, self._reason = (ends, "worse") if ends else ("running", "")

    def load_model(self, address: str, model: str, *, wait: bool, timeout: float) -> Any:
        assert wait and timeout
        self.asked.append(f"load {address}")
        if self._load == "late":
            raise DeadlineExceededError("late")
        return SimpleNamespace(state=self._load, error="no such directory")

    def rollout(self, old: str, new: str, share: float, *, timeout: float) -> Any:
        self.asked.append(f"roll out {new} for {share} of {old}")
        return SimpleNamespace(new=SimpleNamespace(name=new))

    def rollouts(self) -> list[Any]:
        old, new = (
            RolloutSide(name, 0, 100, 300, 50, 100, each)
            for name, each in zip(("old", CANARY), self._drafting, strict=True)
        )
        state: Any = self._state
        return [Rollout(old, new, 0.25, state, self._reason, None, None)]

    def promote(self, new: str) -> None:
        self.asked.append("promote")

    def withdraw(self, new: str) -> None:
        if self._state != "running":
            raise RolloutNotFoundError("ended")
        self.asked.append("withdraw")


class Follower:
    """Traffic from a list, some requests at a time."""

    def __init__(self, requests: list[ServedRequest]) -> None:
        self._requests = requests
        self._backlog = [served(30, "old")] * 5

    def take(self, seconds: float) -> list[ServedRequest]:
        if self._backlog:  # requests that finished before the trial
            taken, self._backlog = self._backlog, []
            return taken
        taken, self._requests = self._requests[:3], self._requests[3:]
        return taken


def trial(pool: Pool, requests: list[ServedRequest], seconds: float = 60.0) -> tuple[Verdict, int]:
    seen: list[ServedRequest] = []
    planner = SimpleNamespace(step_costs=COSTS, steps=100, sequences=100)
    info = SimpleNamespace(engine=SimpleNamespace(planner=planner))
    client: Any = SimpleNamespace(drafters=pool, model_info=lambda: info)
    follower: Any = Follower(requests)
    options = TrialOptions(share=0.25, requests=4, seconds=seconds)
    verdict = try_out(client, follower, "old", CANARY, Path("v1"), options, seen.extend)
    return verdict, len(seen)


BEGUN = [f"load {CANARY}", f"roll out {CANARY} for 0.25 of old"]


def test_the_better_one_takes_over() -> None:
    pool = Pool()
    requests = [served(5, "old"), served(9, CANARY)] * 4
    verdict, seen = trial(pool, requests)
    assert (verdict.promoted, verdict.drafter, seen) == (True, CANARY, 13)
    assert verdict.reason == (
        "1.267 times as fast by cost (standard error 0.000), 0.900 accepted tokens per step against 0.500, "
        "0.00 ms of drafting against 0.00 (4 and 4 requests)"
    )
    assert (verdict.accepted_per_step, verdict.speed_ratio) == ((0.5, 0.9), pytest.approx(1.9 / 1.5))
    assert pool.asked == [*BEGUN, "promote"]


def test_one_that_is_no_better_is_withdrawn() -> None:
    pool = Pool()
    verdict, _ = trial(pool, [served(5, "old"), served(5, CANARY)] * 4)
    assert (verdict.promoted, verdict.drafter) == (False, "old")
    assert pool.asked == [*BEGUN, "withdraw"]


def test_one_that_is_right_more_often_and_takes_too_long_is_withdrawn() -> None:
    """A step takes 13 ms, and the new one drafts for 4 ms more."""
    verdict, _ = trial(Pool(drafting=(0.0, 0.4)), [served(5, "old"), served(9, CANARY)] * 4)
    assert not verdict.promoted
    assert verdict.speed_ratio == pytest.approx(1.9 / 17 / (1.5 / 13))
    assert verdict.reason.startswith("0.969 times as fast by cost")


def uneven(old: int, new: int, rounds: int) -> list[ServedRequest]:
    """Returns requests of both, of which every other one has 4 accepted tokens more or less."""
    signs = (4, -4) * rounds
    return [each for sign in signs for each in (served(old + sign, "old"), served(new + sign, CANARY))]


@pytest.mark.parametrize(
    ("new", "promoted", "requests"),
    [
        (30, True, 4),  # clear at once
        (12, True, 16),  # likely, when there are four times as many
        (11, False, 16),  # faster, but not by as much as chance may be
        (4, False, 4),
    ],
)
def test_a_difference_that_is_not_clear_takes_more_requests(new: int, promoted: bool, requests: int) -> None:
    verdict, _ = trial(Pool(), uneven(10, new, 10))
    assert verdict.promoted == promoted
    assert f"({requests} and " in verdict.reason, verdict.reason


def test_only_requests_of_one_of_the_two_alone_count() -> None:
    pool = Pool()
    others = [served(30, "old", CANARY), served(30, "third"), served(30)]
    verdict, seen = trial(pool, [*others * 3, *[served(2, "old"), served(3, CANARY)] * 4])
    assert "0.300 accepted tokens per step against 0.200" in verdict.reason
    assert verdict.promoted and seen == 22


def test_without_traffic_it_is_withdrawn() -> None:
    pool = Pool()
    verdict, _ = trial(pool, [served(5, "old")] * 6, seconds=0.0)
    assert not verdict.promoted and "undecided" in verdict.reason
    assert pool.asked[-1] == "withdraw"


def test_what_the_verifier_withdraws_stays_withdrawn() -> None:
    pool = Pool(ends="withdrawn")
    verdict, _ = trial(pool, [served(5, "old"), served(9, CANARY)] * 4)
    assert (verdict.promoted, verdict.reason) == (False, "withdrawn by the verifier: worse")
    assert pool.asked == BEGUN


def test_a_checkpoint_that_cannot_be_served_is_not_rolled_out() -> None:
    pool = Pool(load="failed")
    verdict, _ = trial(pool, [])
    assert not verdict.promoted and "no such directory" in verdict.reason
    assert pool.asked == BEGUN[:1]


def test_a_checkpoint_that_loads_too_long_is_not_rolled_out() -> None:
    pool = Pool(load="late")
    verdict, _ = trial(pool, [])
    assert not verdict.promoted and verdict.reason == f"{CANARY} did not load it within 300 s"
    assert pool.asked == BEGUN[:1]


def test_an_interruption_withdraws_it() -> None:
    class Broken(Follower):
        def take(self, seconds: float) -> list[ServedRequest]:
            raise KeyboardInterrupt

    pool = Pool()
    client: Any = SimpleNamespace(drafters=pool)
    follower: Any = Broken([])
    with pytest.raises(KeyboardInterrupt):
        try_out(client, follower, "old", CANARY, Path("v1"), TrialOptions(), lambda _: None)
    assert pool.asked[-1] == "withdraw"
