"""Figures and rows that follow from requests."""

import pytest

from benchmarks.harness.real_files import GEMMA3, REAL_MODELS
from benchmarks.real.measurements import Measurements
from draftwire import SpeculationStats
from draftwire_tools.small_model import SMOLLM2
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Arrival, Request


def request(rate: float, tokens: int = 11, steps: int = 0) -> Request:
    """A request whose first token comes after 0.25 seconds, and further ones at a rate."""
    arrivals = (Arrival(0.25, 1), Arrival(0.25 + (tokens - 1) / rate, tokens - 1))
    stats = SpeculationStats(steps, tokens, 2 * steps, tokens - steps, 0, [])
    return Request(arrivals, tuple(range(tokens)), stats)


@pytest.fixture
def measured() -> Measurements:
    """Two runs of two tasks; lookup is twice and eight times as fast as plain decoding, more in the second run."""
    found = Measurements(["chat", "edit"])
    for run in (0, 1):
        for task, gain in (("chat", 2.0), ("edit", 8.0)):
            for _ in range(3):
                found.add("plain", run, task, request(10.0 * (run + 1)))
                found.add("lookup", run, task, request(10.0 * (run + 1) * gain * (1 + run), steps=5))
    return found


def test_speed_ups_are_ratios_within_a_run(measured: Measurements) -> None:
    assert measured.speed_up("lookup", "chat") == Spread(*map(pytest.approx, (3.0, 2.0, 4.0)), 2)
    assert measured.mean_speed_up("lookup") == Spread(*map(pytest.approx, (6.0, 4.0, 8.0)), 2)
    assert measured.acceptance_length("lookup") == pytest.approx(11 / 5)
    assert measured.first_token_ms("lookup").median == pytest.approx(250)


def test_the_rates_of_answers_of_different_lengths_are_those_of_all_tokens() -> None:
    found = Measurements(["chat"])
    found.add("plain", 0, "chat", request(10.0, tokens=11))
    found.add("plain", 0, "chat", request(30.0, tokens=31))
    found.add("plain", 0, "chat", Request((Arrival(0.5, 1),), (1,)))
    assert found.rate("plain", 0, "chat") == pytest.approx(40 / 2)


def test_figures_and_rows(measured: Measurements) -> None:
    figures = measured.figures("SmolLM2, T = 0")
    assert figures["SmolLM2, T = 0, lookup, edit: speed-up"] == measured.speed_up("lookup", "edit")
    assert "SmolLM2, T = 0, plain: acceptance length" not in figures
    plain, lookup = measured.rows("SmolLM2", 0.0)
    assert plain["way"] == "plain"
    assert (plain["chat"], plain["acceptance_length"]) == (1.0, None)
    assert (lookup["chat"], lookup["edit"], lookup["acceptance_length"]) == (3.0, 12.0, 2.2)


def test_the_best_of_each_task_is_compared_with_llama_cpps_best(measured: Measurements) -> None:
    """Of which speculation is the fastest way for one task, and plain decoding for the other."""
    for run in (0, 1):
        for task, rate in (("chat", 4.0), ("edit", 8.0)):
            measured.add("llama.cpp plain", run, task, request(5.0))
            measured.add("llama.cpp ngram-mod", run, task, request(rate))
    figures = measured.figures("SmolLM2, T = 0")
    for name, low, high in (
        ("T = 0: plain / llama.cpp plain", 2.0, 4.0),
        ("T = 0, chat: best / llama.cpp's best", 4.0, 16.0),
        ("T = 0, edit: best / llama.cpp's best", 10.0, 40.0),
        ("T = 0: best / llama.cpp's best, mean of the tasks", 40**0.5, 640**0.5),
    ):
        assert figures[f"SmolLM2, {name}"] == Spread(*map(pytest.approx, ((low + high) / 2, low, high)), 2)


def test_a_way_that_failed_is_left_out(measured: Measurements) -> None:
    measured.drop("lookup")
    assert measured.ways == ["plain"]


def test_the_files_are_described_whole() -> None:
    assert [model.file for model in REAL_MODELS.values()] == [SMOLLM2, GEMMA3]
    for file in (SMOLLM2, GEMMA3):
        assert len(file.sha256) == 64
        assert 0 < file.download_size < file.size
    assert len(GEMMA3.parts) == 4
