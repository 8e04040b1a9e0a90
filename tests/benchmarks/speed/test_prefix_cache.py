"""Workloads and figures of the prefix cache's benchmark."""

import argparse

from benchmarks.harness.held_out import texts_of
from benchmarks.speed.prefix_cache import CHATS, SYSTEM, Case, figures, identical
from draftwire_tools.turns import Arrival, Batch, Request


def batch(first: float, *, cached: int = 0, token: int = 7) -> Batch:
    """Returns a request with two tokens, the second a second after the first."""
    arrivals = (Arrival(first, 1), Arrival(first + 1.0, 1))
    return Batch((Request(arrivals, (token, 8), prompt_tokens=100, cached_tokens=cached),))


def test_no_two_texts_begin_alike() -> None:
    texts = [text for run in range(3) for text in texts_of(range(300, 350), run, 4, 60)]
    assert {len(text) for text in texts} == {60}
    assert len({tuple(text[:2]) for text in texts}) == len(texts)
    assert texts_of(range(300, 350), 1, 4, 60) == texts[4:8], "another time the same"


def test_figures() -> None:
    slow, fast = Case([[batch(3.0), batch(9.0)]] * 2), Case([[batch(3.0), batch(1.0, cached=80)]] * 2)
    measured = {(name, cached): fast if cached else slow for name in (CHATS, SYSTEM) for cached in (False, True)}
    options = argparse.Namespace(
        target_millions=1,
        verifier_cores=[0],
        chats=1,
        turns=2,
        requests=1,
        user_tokens=4,
        system_tokens=8,
        max_tokens=2,
    )
    found = figures(measured, options)
    assert found["chats: prompt tokens found"] == "40.0%"
    assert found["outputs_identical"] is True
    assert fast.first_token_ms(0.5, turns=slice(-1, None)).median == 1000.0
    assert slow.first_token_ms(0.95).median == 9000.0
    assert (slow.rate().median, fast.rate().median) == (4 / 14, 4 / 6)
    assert not identical(measured | {(CHATS, True): Case([[batch(3.0), batch(1.0, token=6)]] * 2)})
