"""Drafting goes on while it pays, and is tried again and again where it does not."""

import pytest

from speculative_engine.drafters.drafting_pace import DraftingPace


def run(pace: DraftingPace, steps: int, *, draft: float, step: float, tokens: int, start: float = 0.0) -> list[bool]:
    """Steps of a target of `step` seconds: in which of them there was a drafting of `draft` seconds."""
    now, drafted = start, []
    for _ in range(steps):
        drafted.append(pace.pays(now))
        if drafted[-1]:
            pace.drafted(now, now + draft)
            pace.brought(tokens)
            now += draft
        now += step
    return drafted


def test_what_pays_goes_on() -> None:
    assert all(run(DraftingPace(), 500, draft=0.4, step=1.0, tokens=1))


def test_what_is_never_right_takes_a_fiftieth_of_the_time() -> None:
    drafted = run(DraftingPace(), 5000, draft=0.1, step=1.0, tokens=0)
    late = drafted[1000:]
    assert 0.5 * 0.02 < sum(late) * 0.1 / len(late) < 1.2 * 0.02


def test_what_is_dearer_than_what_it_brings_is_left() -> None:
    late = run(DraftingPace(), 2000, draft=3.0, step=1.0, tokens=2)[1000:]
    assert sum(late) <= len(late) / 120


def test_it_begins_again_when_it_pays_again() -> None:
    pace = DraftingPace()
    run(pace, 1000, draft=0.1, step=1.0, tokens=0)
    assert all(run(pace, 3000, draft=0.1, step=1.0, tokens=2, start=2000.0)[2000:])


def test_time_without_sequences_is_no_step() -> None:
    pace = DraftingPace()
    run(pace, 200, draft=0.5, step=0.1, tokens=1)
    for start in range(100, 400):
        pace.rest()
        drafted = run(pace, 3, draft=0.5, step=0.1, tokens=1, start=1000.0 * start)
        assert sum(drafted) <= 1, "an idle hour does not make a step seem long"


@pytest.mark.parametrize("steps", [1, 2])
def test_the_first_drafting_is_made(steps: int) -> None:
    assert run(DraftingPace(), steps, draft=5.0, step=0.1, tokens=0)[0]
