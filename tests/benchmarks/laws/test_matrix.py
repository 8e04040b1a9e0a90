"""The matrix of options and drafters: with real services all cells are equal, and a cell that is not is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.laws.matrix.__main__ import LOCAL, PREDICTED, WAYS
from benchmarks.laws.matrix.cell import Cell
from benchmarks.laws.matrix.endpoints import Outcome
from benchmarks.laws.matrix.page import page
from benchmarks.laws.matrix.request_options import OPTIONS
from tests.harness.checkout import ROOT


def test_what_differs_is_told() -> None:
    plain = [Outcome(("text", [1, 2]), 2, 2), Outcome(("more", [3]), 1, 1)]
    wrong = [plain[0], Outcome(("more", [4]), 1, 1)]
    cells = [Cell.of("greedy", "n-gram", way, plain, wrong, 1.0) for way in WAYS]
    assert [cell.differing for cell in cells] == [1, 1, 1]
    assert "| greedy | **3 of 6 differ** |" in page(cells, {"processor": "any"})


def test_the_published_page_has_every_option_and_drafter() -> None:
    text = (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        assert f"| {option} |" in text
    for drafter in ("draft model", *LOCAL, PREDICTED):
        assert drafter in text
    assert " 0 of " in text.replace("**", " ")


@pytest.mark.slow
class TestWholeMatrix:
    def test_outputs_are_equal_in_every_way(self, tmp_path: Path) -> None:
        written = tmp_path / "matrix.md"
        command = [sys.executable, "-m", "benchmarks.laws.matrix", "--prompts", "2", "--drafters", "n-gram", "--json"]
        done = subprocess.run(
            [*command, "--page", str(written)], capture_output=True, text=True, timeout=500, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["differing"] == 0
        assert found["requests"] == 2 * len(WAYS) * len(OPTIONS)
        cells = found["cells"]
        assert [(cell["option"], cell["way"]) for cell in cells] == [(row, way) for row in OPTIONS for way in WAYS]
        resumed = [cell["resumes"] for cell in cells if cell["way"] == "resumed"]
        assert sum(resumed) >= len(OPTIONS), "most requests of the SDK are cut"
        assert sum(cell["resumes"] for cell in cells) == sum(resumed)
        assert sum(cell["tokens_per_step"] > 1.2 for cell in cells) > len(cells) / 2, "guesses are accepted"
        text = written.read_text()
        assert "**0 of 96 outputs differ.**" in text
        assert text.count("\n| ") == 1 + len(OPTIONS)

    def test_predicted_outputs(self) -> None:
        """Of the SDK, of the gateway, and of several results."""
        command = [sys.executable, "-m", "benchmarks.laws.matrix", "--prompts", "2", "--json"]
        command += ["--drafters", "predicted", "--options", "greedy,tools,n >"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        cells = json.loads(done.stdout)["cells"]
        assert {(cell["option"], cell["drafter"]) for cell in cells} == {
            (row, PREDICTED) for row in ("greedy", "tools", "n > 1")
        }
        alone = [cell["tokens_per_step"] for cell in cells if cell["way"] == "alone"]
        assert all(tokens > 1.2 for tokens in alone), "guesses are accepted"
