"""The matrix of options and drafters: with real services all cells are equal, and a cell that is not is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.results import results
from benchmarks.harness.sections import with_section
from benchmarks.laws.matrix.__main__ import LOCAL, PREDICTED, WAYS
from benchmarks.laws.matrix.page import Cell, section
from benchmarks.laws.matrix.request_options import OPTIONS
from draftwire_tools.check.case import CaseResult
from tests.harness.checkout import ROOT


def test_what_differs_is_told() -> None:
    found = CaseResult("n-gram", "greedy", compared=2, equal=1, tokens=3, steps=3)
    cells = [Cell.of("n-gram", way, found, 1.0) for way in WAYS]
    assert [cell.differing for cell in cells] == [1, 1, 1]
    assert "| greedy | **3 of 6 differ** |" in section(cells, {"processor": "any"})


def test_the_document_shows_the_newest_matrix() -> None:
    newest = next(each for each in results() if each.benchmark == "matrix")
    cells = [Cell(**each) for each in newest.figures["cells"]]
    assert list(dict.fromkeys(cell.option for cell in cells)) == list(OPTIONS)
    assert {"draft model", *LOCAL, PREDICTED} <= {cell.drafter for cell in cells}
    about = {"processor": newest.processor, "cores": newest.machine["cores"], "commit": newest.commit}
    document = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
    assert with_section(document, "matrix", section(cells, about)) == document


@pytest.mark.slow
class TestWholeMatrix:
    def test_outputs_are_equal_in_every_way(self, tmp_path: Path) -> None:
        written = tmp_path / "matrix.md"
        written.write_text("<!-- figures: matrix -->\n<!-- /figures -->\n", encoding="utf-8")
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
