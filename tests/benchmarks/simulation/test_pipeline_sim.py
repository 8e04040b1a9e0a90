"""Policies in virtual time, against results computed by hand."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.harness.simulated_models import Agreement, ModelPair
from benchmarks.harness.simulated_services import VirtualClock
from benchmarks.simulation.pipeline_sim import validation
from benchmarks.simulation.simulated_setting import Curve, Setting, draft_then_verify, drafted_ahead, plain

TARGET, DRAFT = 0.030, 0.003
CURVES = [Curve.flat, Curve.cpu]


def setting(
    *,
    agreement: float = 0.75,
    round_trip: float = 0.0,
    target: Curve | None = None,
    draft: Curve | None = None,
    tokens: int = 300,
    seed: int = 1,
    streams: int = 1,
) -> Setting:
    return Setting(
        target or Curve.flat(TARGET),
        draft or Curve.flat(DRAFT),
        Agreement.of(agreement),
        round_trip,
        tokens=tokens,
        seed=seed,
        streams=streams,
    )


def test_the_clock_runs_events_in_their_order() -> None:
    clock, seen = VirtualClock(), []
    clock.after(2.0, lambda: seen.append(("late", clock.now)))
    clock.after(1.0, lambda: clock.after(1.0, lambda: seen.append(("asked later", clock.now))))
    clock.after(1.0, lambda: seen.append(("early", clock.now)))
    clock.run(lambda: len(seen) == 3)
    assert seen == [("early", 1.0), ("late", 2.0), ("asked later", 2.0)]
    with pytest.raises(RuntimeError, match="waits"):
        clock.run(lambda: False)


def test_models_agree_as_often_as_they_are_told_to() -> None:
    agreement, length = Agreement((0.7, 0.15, 0.05)), 10_000
    pair = ModelPair(agreement, length, "seed")
    hits = [0, 0, 0]
    said = 0.0
    for position in range(1, length):
        tokens, log_probs = pair.draft(position, on_path=True)
        assert len(set(tokens)) == 3
        said += math.exp(log_probs[0])
        if pair.target(position) in tokens:
            hits[tokens.index(pair.target(position))] += 1
        assert pair.target(position) not in pair.draft(position, on_path=False)[0]
    assert [count / length for count in hits] == pytest.approx(agreement.by_rank, abs=0.015)
    assert said / length == pytest.approx(0.7, abs=0.03), "the draft model is about as sure as it is right"


def test_a_seed_gives_one_run_and_another_seed_another() -> None:
    for policy in (plain, drafted_ahead, lambda each: draft_then_verify(each, 4)):
        assert policy(setting(round_trip=0.005, tokens=60)) == policy(setting(round_trip=0.005, tokens=60))
    assert drafted_ahead(setting(seed=1, tokens=60)) != drafted_ahead(setting(seed=2, tokens=60))


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("streams", [1, 4])
def test_plain_decoding_takes_a_step_a_token(curve: type[Curve], streams: int) -> None:
    target = curve(TARGET)
    tally = plain(setting(target=target, streams=streams))
    assert tally.tokens == 300 * streams and tally.steps == 300
    assert tally.tokens_per_second == pytest.approx(streams / target.cost().seconds(streams))


@pytest.mark.parametrize("round_trip", [0.0, 0.02])
def test_a_chain_that_is_drafted_then_verified_takes_the_sum_of_its_parts(round_trip: float) -> None:
    """One drafter step per token, a round trip, and a step of the target."""
    length, tokens = 5, 1000
    tally = draft_then_verify(
        setting(round_trip=round_trip, target=Curve((1,), (TARGET,)), draft=Curve((1,), (DRAFT,)), tokens=tokens),
        length,
    )
    assert tally.seconds / tally.steps == pytest.approx(round_trip + length * DRAFT + TARGET, rel=0.003)
    assert tally.tokens / tally.steps == pytest.approx((1 - 0.75 ** (length + 1)) / 0.25, rel=0.03)


def test_a_perfect_drafter_that_costs_nothing_reaches_what_its_credit_allows() -> None:
    given = setting(agreement=1 - 1e-9, draft=Curve((1,), (1e-6,)), tokens=500)
    most = given.max_tree_nodes + 1
    tally = drafted_ahead(given)
    assert 0.5 * most < tally.tokens / tally.steps <= most
    assert tally.tokens_per_second <= most / given.target.cost().seconds(most)


ROUND_TRIPS = [0.0, 0.005, 0.02, 0.05, 0.2]
USELESS = [(0.02, DRAFT), (0.02, TARGET), (0.75, TARGET), (0.75, 20 * TARGET)]
"""Agreement and draft time of drafters that cannot help."""
SOME_USELESS = [
    (CURVES[place % 2], round_trip, *USELESS[(place + number) % len(USELESS)])
    for place, round_trip in enumerate(ROUND_TRIPS)
    for number in range(2)
]


@pytest.mark.parametrize(("curve", "round_trip", "agreement", "draft"), SOME_USELESS)
def test_a_drafter_that_cannot_help_does_no_harm(
    curve: type[Curve], round_trip: float, agreement: float, draft: float
) -> None:
    check_no_harm(curve, round_trip, agreement, draft)


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.parametrize("curve", CURVES)
    @pytest.mark.parametrize("round_trip", ROUND_TRIPS)
    @pytest.mark.parametrize(("agreement", "draft"), USELESS)
    def test_a_drafter_that_cannot_help_does_no_harm(
        self, curve: type[Curve], round_trip: float, agreement: float, draft: float
    ) -> None:
        check_no_harm(curve, round_trip, agreement, draft)


def check_no_harm(curve: type[Curve], round_trip: float, agreement: float, draft: float) -> None:
    target, drafter = curve(TARGET), curve(draft)
    given = setting(agreement=agreement, round_trip=round_trip, target=target, draft=drafter)
    assert drafted_ahead(given).tokens_per_second >= 0.97 * plain(given).tokens_per_second


@pytest.mark.parametrize("round_trip", [0.0, 0.005, 0.02, 0.05])
def test_each_policy_is_faster_than_the_one_before(round_trip: float) -> None:
    given = setting(round_trip=round_trip, tokens=300)
    then = max(draft_then_verify(given, length).tokens_per_second for length in (4, 5, 6))
    chain, tree = drafted_ahead(given, width=1).tokens_per_second, drafted_ahead(given).tokens_per_second
    assert 0.99 * plain(given).tokens_per_second < then < chain < tree


def case(**changes: object) -> dict[str, object]:
    return {
        "name": "here",
        "target_ms": {"1": 30, "64": 31.5},
        "draft_ms": {"1": 3},
        "by_rank": [0.75, 0.13, 0.05],
        "round_trip_ms": 5,
        "tokens": 40,
        "requests": 2,
        "measured": {"plain": 33.3},
    } | changes


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(content))
    return path


def test_what_was_measured_is_shown_beside_what_is_simulated(tmp_path: Path) -> None:
    (row,) = validation(written(tmp_path, {"cases": [case(measured={"plain": 20.0})]}), [1])
    assert row == {
        "case": "here",
        "policy": "plain",
        "measured": 20.0,
        "simulated": 33.33,
        "simulated_over_measured": 1.667,
    }


def test_a_policy_may_have_steps_of_its_own(tmp_path: Path) -> None:
    measured = {"plain": 20.0, "tree_ahead": 50.0}
    rows = {}
    for steps in ({}, {"plain": {"target_ms": {"1": 20}}}):
        found = validation(written(tmp_path, {"cases": [case(measured=measured, steps=steps)]}), [1])
        rows[bool(steps)] = {row["policy"]: row["simulated"] for row in found}
    assert (rows[False]["plain"], rows[True]["plain"]) == (33.33, 50.0)
    assert rows[False]["tree_ahead"] == rows[True]["tree_ahead"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"by_rank": [0.9, 0.9]}, r"cases\[0\]: by_rank"),
        ({"target_ms": {"1": "fast"}}, r"cases\[0\]: target_ms"),
        ({"draft_ms": {}}, r"cases\[0\]: draft_ms"),
        ({"round_trip_ms": -1}, r"cases\[0\]: round_trip"),
        ({"tokens": 0}, r"cases\[0\]: tokens"),
        ({"measured": {"best": 1.0}}, r"cases\[0\]: measured\.best"),
        ({"steps": {"plain": {"target_ms": {}}}}, r"cases\[0\]: steps\.plain\.target_ms"),
        ({"steps": {"plain": {"rows": {}}}}, r"cases\[0\]: steps\.plain\.rows"),
        ({"steps": {"best": {}}}, r"cases\[0\]: steps\.best"),
        ({"colour": "red"}, r"cases\[0\]: colour"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_field(tmp_path: Path, changes: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        validation(written(tmp_path, {"cases": [case(**changes)]}), [1])


def test_a_file_without_what_is_needed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cases"):
        validation(written(tmp_path, [1]), [1])
    incomplete = case()
    del incomplete["draft_ms"]
    with pytest.raises(ValueError, match="draft_ms"):
        validation(written(tmp_path, {"cases": [incomplete]}), [1])
