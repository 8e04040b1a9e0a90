"""Workload and figures of the benchmark of many verifiers."""

import argparse
from collections import Counter

from benchmarks.scale.many_verifiers import BY_PREFIX, IN_TURN, ROOMY, Case, figures, identical, prompts_of
from draftwire_tools.turns import Arrival, Batch, Request

OPTIONS = argparse.Namespace(
    prefixes=4, requests=3, prefix_tokens=32, user_tokens=8, max_tokens=2, concurrency=2, target_millions=1,
    first_cores=[0], second_cores=[1], roomy_slots=1000, tight_slots=100,
)  # fmt: skip


def test_prompts_share_prefixes_within_a_run_only() -> None:
    first, second = (prompts_of(range(300, 600), run, OPTIONS) for run in (1, 2))
    for prompts in (first, second):
        assert {len(prompt) for prompt in prompts} == {40}
        assert set(Counter(tuple(prompt[:32]) for prompt in prompts).values()) == {3}
        assert len({tuple(prompt) for prompt in prompts}) == 12
    assert not {tuple(prompt[:2]) for prompt in first} & {tuple(prompt[:2]) for prompt in second}
    assert first == prompts_of(range(300, 600), 1, OPTIONS), "another time the same"


def batch(first: float, cached: int) -> Batch:
    """Returns a request with two tokens, the second a second after the first."""
    arrivals = (Arrival(first, 1), Arrival(first + 1.0, 1))
    return Batch((Request(arrivals, (7, 8), prompt_tokens=100, cached_tokens=cached),))


def test_figures() -> None:
    measured = {
        (ROOMY, BY_PREFIX): Case([batch(1.0, 80)] * 2, [3, 4]),
        (ROOMY, IN_TURN): Case([batch(3.0, 40)] * 2, [6, 6]),
    }
    found = figures(measured, OPTIONS)
    assert str(found[f"{ROOMY}, {BY_PREFIX}: share of prompt tokens found"]).startswith("0.8 ")
    assert str(found[f"{ROOMY}, {IN_TURN}: median time to the first token, ms"]).startswith("3e+03 ")
    assert str(found[f"{ROOMY}, {IN_TURN}: tokens/s, with prompts"]).startswith("0.5 ")
    assert found[f"{ROOMY}, {BY_PREFIX}: requests at the first verifier"] == [3, 4]
    assert found["outputs_identical"] is True
    measured[ROOMY, BY_PREFIX].differing = 1
    assert not identical(measured)
