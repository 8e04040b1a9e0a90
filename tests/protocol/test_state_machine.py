"""Random interleavings of everything that happens between a verifier and its drafters.

`pytest tests/protocol --tier all --hypothesis-profile=long --timeout=0` plays many more.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from draftwire_core.engine.planning import drafting_account
from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.plays import play, play_at_random
from tests.harness.world.protocol_machine import ProtocolMachine
from tests.harness.world.request_choices import LOCAL, PROMPTS, request_of

WANTED = (
    "accepted",
    "nodes compared",
    "local nodes compared",
    "moved while running",
    "duplicates",
    "reordered",
    "lies",
    "steps gathered",
)
"""Counters that must not stay 0 over the plays: otherwise they test too little."""
WANTED_WITH_PAUSES = ("accepted", "untold", "nodes compared", "moved while running")
PLAYS = 2
"""Random plays in one test."""
STEPS = 60


@pytest.fixture
def pausing(monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes drafters pause after any use of the verifier's time; returns the seconds that each message takes."""
    monkeypatch.setattr(drafting_account, "ALLOWANCE", 0.5)
    return 1.0  # whatever they bring


def check_seen(seen: Counter[str], wanted: tuple[str, ...]) -> None:
    print(dict(sorted(seen.items())))
    for what in wanted:
        assert seen[what], f"no play had any: {what}"


@pytest.mark.parametrize("block", range(8))
def test_the_protocol_keeps_its_promises(block: int, checkpoints: Checkpoints, reference: PlainReference) -> None:
    for seed in range(block * PLAYS, (block + 1) * PLAYS):
        with play(checkpoints, reference) as playing:
            play_at_random(playing, seed, STEPS)


@pytest.mark.parametrize("block", range(16, 18))
def test_also_while_drafters_are_paused(
    block: int, checkpoints: Checkpoints, reference: PlainReference, pausing: float
) -> None:
    for seed in range(block * PLAYS, (block + 1) * PLAYS):
        with play(checkpoints, reference, message_seconds=pausing) as playing:
            play_at_random(playing, seed, STEPS)


def test_a_play_of_everything(checkpoints: Checkpoints, reference: PlainReference) -> None:
    seen: Counter[str] = Counter()
    with play(checkpoints, reference, seen) as playing:
        playing.begin([LOCAL, "good"], [request_of()])
        for _ in range(10):
            playing.go_on(3)
        # The local drafter knows this text now. It drafts further than the two nodes that are verified.
        playing.ask(request_of(drafters=2, max_draft_tokens=2))
        playing.ask(request_of(PROMPTS[2], drafters=2))
        playing.go_on(2)
        playing.rest()
        playing.step(1)
        playing.begin_step(60.0)
        playing.rest()
        playing.go_on(1)
        playing.swap(0, "poor", request_of(), 0, 2)
        playing.step(1)
        playing.duplicate(0, "up", 0)
        playing.lie(0, "other tokens", 0)
        playing.reorder(0, "up", 0)
    check_seen(seen, WANTED)


def test_a_play_with_pauses(checkpoints: Checkpoints, reference: PlainReference, pausing: float) -> None:
    seen: Counter[str] = Counter()
    with play(checkpoints, reference, seen, message_seconds=pausing) as playing:
        playing.begin(["good"], [request_of()])
        for _ in range(5):
            playing.go_on(1)
            playing.rest()
        playing.swap(0, "poor", request_of(), 0, 2)
        playing.rest()
    check_seen(seen, WANTED_WITH_PAUSES)


def test_hypothesis_plays_it(checkpoints: Checkpoints, reference: PlainReference) -> None:
    """So that the long search works when it is wanted."""
    run_state_machine_as_test(
        lambda: ProtocolMachine(checkpoints, reference, Counter()),
        settings=settings(suppress_health_check=list(HealthCheck), max_examples=4, stateful_step_count=10),
    )


@pytest.mark.slow
class TestLongSearch:
    """Plays that Hypothesis chooses, and shrinks if they fail."""

    def test_the_protocol_keeps_its_promises(self, checkpoints: Checkpoints, reference: PlainReference) -> None:
        seen: Counter[str] = Counter()
        run_state_machine_as_test(
            lambda: ProtocolMachine(checkpoints, reference, seen),
            settings=settings(suppress_health_check=list(HealthCheck)),
        )
        check_seen(seen, WANTED)

    def test_also_while_drafters_are_paused(
        self, checkpoints: Checkpoints, reference: PlainReference, pausing: float
    ) -> None:
        seen: Counter[str] = Counter()
        run_state_machine_as_test(
            lambda: ProtocolMachine(checkpoints, reference, seen, message_seconds=pausing),
            settings=settings(suppress_health_check=list(HealthCheck), max_examples=60),
        )
        check_seen(seen, WANTED_WITH_PAUSES)

    @pytest.mark.parametrize("block", range(20))
    def test_random_plays(self, block: int, checkpoints: Checkpoints, reference: PlainReference) -> None:
        for seed in range(1000 + block * 10, 1000 + (block + 1) * 10):
            with play(checkpoints, reference) as playing:
                play_at_random(playing, seed, STEPS)
