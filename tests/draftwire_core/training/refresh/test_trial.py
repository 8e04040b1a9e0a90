"""The outcome of a checkpoint's trial, decided by the traffic."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire import ServedRequest, SpeculationStats
from draftwire.errors import DeadlineExceededError, RolloutNotFoundError
from draftwire_core.training.refresh.trial import TrialOptions, Verdict, try_out

CANARY = "canary:1"


def served(accepted: int, *drafters: str) -> ServedRequest:
    stats = SpeculationStats(
        steps=10, tokens=20, draft_tokens=30, accepted_tokens=accepted, stale_nodes=0, drafters=[], hits=0
    )
    return ServedRequest([1], [2] * 20, stats, list(drafters))


class Pool:
    """The client's drafters: records the calls, and answers as a test specifies."""

    def __init__(self, load: str = "serving", ends: str = "") -> None:
        self.asked: list[str] = []
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
        return [SimpleNamespace(new=SimpleNamespace(name=CANARY), state=self._state, reason=self._reason)]

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
    client: Any = SimpleNamespace(drafters=pool)
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
    assert verdict.reason == "0.900 accepted tokens per step against 0.500 (4 and 4 requests)"
    assert pool.asked == [*BEGUN, "promote"]


def test_one_that_is_no_better_is_withdrawn() -> None:
    pool = Pool()
    verdict, _ = trial(pool, [served(5, "old"), served(5, CANARY)] * 4)
    assert (verdict.promoted, verdict.drafter) == (False, "old")
    assert pool.asked == [*BEGUN, "withdraw"]


def test_only_requests_of_one_of_the_two_alone_count() -> None:
    pool = Pool()
    others = [served(30, "old", CANARY), served(30, "third"), served(30)]
    verdict, seen = trial(pool, [*others * 3, *[served(2, "old"), served(3, CANARY)] * 4])
    assert verdict.reason.startswith("0.300 accepted tokens per step against 0.200")
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
