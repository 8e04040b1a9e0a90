"""Figures of the benchmark of simultaneous requests."""

import argparse

import pytest

from benchmarks.scale.batch import AUTO, LIMITED, OFF, figures, identical, kinds
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Arrival, Batch, Request


def batch(gap: float, token: int = 7) -> Batch:
    return Batch((Request((Arrival(1.0, 1), Arrival(1.0 + gap, 1)), (token, 8)),))


def test_figures() -> None:
    options = argparse.Namespace(
        target_millions=1, draft_millions=1, verifier_cores=[0], drafter_cores=[1], prompt_tokens=4, max_tokens=2,
        temperature=0.0, draft_tokens=4,
    )  # fmt: skip
    measured = {(1, OFF): [batch(3.0)] * 2, (1, AUTO): [batch(1.0)] * 2, (1, LIMITED): [batch(3.0)] * 2}
    found = figures(measured, options)
    ratio, gap = (
        found["1 requests, auto / off"],
        found["1 requests, auto: 95th percentile of the time between tokens, ms"],
    )
    assert isinstance(ratio, Spread) and ratio.median == pytest.approx(2.0)
    assert isinstance(gap, Spread) and gap.median == pytest.approx(1000.0)
    assert identical(measured)
    assert not identical(measured | {(1, AUTO): [batch(1.0), batch(1.0, token=6)]})


def test_kinds_of_speculation() -> None:
    found = kinds(4)
    assert not found[OFF].enabled
    assert found[AUTO].enabled and found[AUTO].max_draft_tokens is None
    assert found[LIMITED].max_draft_tokens == 4
