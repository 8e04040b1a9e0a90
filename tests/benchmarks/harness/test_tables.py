"""Results as data: reading back what was written, newest first, and documents that match the data."""

import argparse
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import results as results_module
from benchmarks.harness.figures import Goal, cell, matching
from benchmarks.harness.results import RESULTS, Result, plain, results, save, write
from benchmarks.harness.tables import DOCUMENTS, Page, made, scripts, summary
from draftwire_tools.spread import Spread
from tests.harness.checkout import ROOT
from tests.harness.processes import ENVIRONMENT, run
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

SHOWN = tomllib.loads((RESULTS / "shown.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def published() -> list[Result]:
    """The results that the documents are made from."""
    return results()


def result(commit: str, committed: str | None, figures: dict[str, Any], processor: str = "Some CPU (A)") -> Result:
    machine = {"processor": processor, "cores": 2, "features": ["AVX2"], "load": None}
    return Result("soak", "python -m x", commit, committed, None, machine, {"torch": "2.13.0"}, "Idle.", figures)


def page(*found: Result, **shown: Any) -> Page:
    return Page({"promise": [], "soak": {"figures": ["*"]}, **shown}, found)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_say_what_the_results_say(document: str, published: list[Result]) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert "<!-- figures: " in text
    assert made(text, Page(SHOWN, published)) == text, "python -m benchmarks.harness.tables"


def test_results_are_of_scripts_and_complete(published: list[Result]) -> None:
    assert {each.benchmark for each in published} <= set(scripts())
    for each in published:
        assert set(each.machine) - {"gpu"} == {"processor", "cores", "features", "load"}
        assert each.figures
    for path in RESULTS.glob("*/*.json"):
        assert path.parent.name == json.loads(path.read_text(encoding="utf-8"))["benchmark"]


def test_what_is_shown_is_there(published: list[Result]) -> None:
    named = set(SHOWN) - {"promise", "comparison"}
    assert named <= set(scripts())
    for promise in SHOWN["promise"]:
        found = [each for each in published if each.benchmark == promise["benchmark"]]
        assert any(matching(each.figures, promise["figures"]) for each in found), promise["text"]
    for name in named:
        figures = [figure for each in published if each.benchmark == name for figure in each.figures]
        for pattern in [*SHOWN[name].get("figures", ()), *SHOWN[name].get("goals", ())]:
            assert matching(dict.fromkeys(figures), [pattern]), (name, pattern)


def test_every_script_has_a_summary() -> None:
    assert len(scripts()) > 30
    for module in scripts().values():
        assert summary(module).endswith("."), module
        assert len(summary(module)) < 130, module


def test_what_is_written_is_read_again_the_newest_first(tmp_path: Path) -> None:
    old = result("aaa", "2026-01-01T10:00:00+00:00", {"a": plain(Spread(1.0, 0.5, 2.0, 3))})
    new = result("bbb", "2026-01-01T10:00:00-05:00", {"a": 2})
    unknown = result("ccc", None, {"a": 3})
    paths = [write(each, tmp_path) for each in (old, new, unknown, new)]
    assert [path.name for path in paths] == [
        "some-cpu-a-aaa.json", "some-cpu-a-bbb.json", "some-cpu-a-ccc.json", "some-cpu-a-bbb-2.json",
    ]  # fmt: skip
    assert results(tmp_path) == [new, new, old, unknown]
    assert old.figures["a"] == {"median": 1.0, "low": 0.5, "high": 2.0, "runs": 3}


def test_a_script_saves_where_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "_running", lambda: "benchmarks.faults.soak")
    monkeypatch.setattr(sys, "argv", ["soak.py", "--minutes", "1", "--name", "a b"])
    save({"a": 1}, argparse.Namespace(results=None))
    assert results(tmp_path) == []
    save({"a": Spread(1.0, 1.0, 1.0, 1), "b": ("x",)}, argparse.Namespace(results=tmp_path))
    (found,) = results(tmp_path)
    assert (found.benchmark, found.command) == ("soak", "python -m benchmarks.faults.soak --minutes 1 --name 'a b'")
    assert found.figures == {"a": {"median": 1.0, "low": 1.0, "high": 1.0, "runs": 1}, "b": ["x"]}
    assert found.date is not None
    assert set(found.versions) == {"python", "torch", "transformers", "grpcio"}


def test_a_table_has_the_newest_figure_of_each_processor() -> None:
    new = result("bbb", "2026-01-02T00:00:00+00:00", {"a": 2.0, "c": 5})
    old = result("aaa", "2026-01-01T00:00:00+00:00", {"a": 1.0, "b": 4.0, "c": 4})
    other = result("aaa", "2026-01-01T00:00:00+00:00", {"b": 0.5}, "Another")
    text = page(new, old, other, soak={"figures": ["*"], "goals": {"b": ">= 1"}}).text("soak")
    assert "| | goal | Some CPU (A), bbb | Another, aaa |" in text
    assert "| a |  | 2 |  |" in text
    assert "| b | at least 1 | 4, at aaa | 0.5, **missed** |" in text
    assert "[Data, commands and conditions](../benchmarks/results/soak)" in text
    chosen = page(new, old, other, soak={"figures": ["b"], "processors": ["Another"]}).text("soak")
    assert chosen.startswith("| | Another, aaa |\n|---|---|\n| b | 0.5 |\n")


def test_the_worst_figure_counts_for_a_promise() -> None:
    promise = {"text": "Fast", "benchmark": "soak", "figures": ["x *"], "goal": ">= 1"}
    found = result("bbb", None, {"x 1": 2.0, "x 2": {"median": 0.9, "low": 0.8, "high": 1.2, "runs": 3}, "y": 0})
    text = page(found, promise=[promise]).text("goals")
    assert "| Fast | at least 1 | 0.9, **missed** | Some CPU (A), bbb |  | [soak](soak) |" in text


def test_a_goal_that_another_processor_misses_is_shown_with_it() -> None:
    promise = {"text": "a", "benchmark": "soak", "figures": ["a"], "goal": ">= 1"}
    found = [result("bbb", None, {"a": 2.0}), result("aaa", None, {"a": 0.5}, "Another")]
    text = page(*found, promise=[promise]).text("goals")
    assert "| a | at least 1 | 2 | Some CPU (A), bbb | 0.5 (Another, aaa) | [soak](soak) |" in text


def test_a_processor_is_the_newest_by_results_that_have_the_figure() -> None:
    promise = {"text": "a", "benchmark": "soak", "figures": ["a"], "goal": ">= 1"}
    part, whole, old = (
        result("ccc", None, {"b": 1.0}),
        result("bbb", None, {"a": 3.0}, "New"),
        result("aaa", None, {"a": 2.0}),
    )
    assert "| a | at least 1 | 3 | New, bbb |" in page(part, whole, old, promise=[promise]).text("goals")


def test_a_comparison_has_the_newest_result_with_all_figures_of_a_block() -> None:
    rows = [{"text": "ours", "ours": True, "figures": [["x", "y"], []]}, {"text": "theirs", "figures": [["z"], []]}]
    block = {"processors": ["Some CPU (A)"], "figure": "{}, tokens/s", "rows": rows}
    shown = {"engines": {"benchmark": "soak", "columns": ["plain", "drafting"], "block": [block]}}
    new = result("bbb", None, {"x, tokens/s": 9.0, "y, tokens/s": 9.0})
    old = result("aaa", None, {"x, tokens/s": 1.0, "y, tokens/s": 2.4, "z, tokens/s": 3.0})
    text = page(new, old, comparison=shown).text("engines")
    assert "| ours | **2** | – |\n| theirs | 3 | – |\n\nProcessor and commit: Some CPU (A), aaa." in text
    block["processors"] = ["Some CPU (A)", "Another"]
    other = result("ccc", None, {"x, tokens/s": 5.0, "y, tokens/s": 4.0, "z, tokens/s": 6.0}, "Another")
    text = page(new, old, other, comparison=shown).text("engines")
    assert "| ours | **2** | – | Some CPU (A), aaa |" in text
    assert "| theirs | 6 | – | Another, ccc |" in text
    block["processors"] = ["Some CPU (A)"]
    with pytest.raises(KeyError, match="no result of Some CPU"):
        page(new, comparison=shown).text("engines")


def test_goals() -> None:
    assert Goal.read(">= 0.97").reached({"median": 0.98, "low": 0.1, "high": 2, "runs": 3})
    assert not Goal.read("<= 2").reached(2.1)
    assert Goal.read("= 0").reached(0)
    assert Goal.read("<= 2").worst([1, 3, 2]) == 3
    with pytest.raises(KeyError):
        Goal.read("about 1")
    with pytest.raises(TypeError, match="is no number"):
        Goal.read("= 0").reached("none")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""), (True, "yes"), (3, "3"), (359074, "359,074"), (1550.0, "1550"), (0.9769, "0.977"),
        (1.0006, "1.001"),
        (1.0, "1"), ({"median": 1.5, "low": 1, "high": 2.25, "runs": 3}, "1.5 (1 to 2.25)"),
        ({"median": None, "low": 0.87, "high": 1.04, "runs": 6}, "0.87 to 1.04"),
        ({"a_b": 1, "c": "x"}, "a b 1; c x"), ({}, "none"),
    ],
)  # fmt: skip
def test_cells(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_a_goal_is_not_met_by_rounding() -> None:
    assert cell(0.8999) == "0.9"
    assert cell(0.8999, Goal.read(">= 0.9")) == "0.8999"
    assert cell(0.9, Goal.read(">= 0.9")) == "0.9"


@pytest.mark.processes
class TestScript:
    def test_a_script_that_python_runs_knows_its_module(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.speed.noise_cost", "--rows", "1", "--vocabulary", "4096"]
        command += ["--rounds", "1", "--results", str(tmp_path)]
        run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=True, timeout=LONG_PATIENCE)
        (found,) = results(tmp_path)
        assert found.benchmark == "noise_cost"
        assert found.command is not None
        assert found.command.startswith("python -m benchmarks.speed.noise_cost --rows 1 ")
        assert "flat, sd 1: sample, T=1, ms" in found.figures
