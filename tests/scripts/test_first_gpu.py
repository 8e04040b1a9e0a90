"""The script of the first minutes on a GPU, with a stand-in for Python that only records what it is asked to run."""

import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE

SCRIPT = ROOT / "scripts" / "first_gpu.sh"


def test_parts_fit_into_ten_minutes_and_are_there(tmp_path: Path) -> None:
    limits = [int(limit) for limit in re.findall(r"^part (\d+) ", SCRIPT.read_text(), re.MULTILINE)]
    assert len(limits) == 7 and sum(limits) <= 590
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "ran $*"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["sh", SCRIPT],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    logs = sorted((tmp_path / "out").glob("*.log"))
    assert [log.name[0] for log in logs] == list("1234567")
    for log in logs:
        assert log.read_text() in done.stdout
        module = log.read_text().split()[2]
        assert importlib.import_module(f"{module}.__main__" if module == "benchmarks.gpu" else module).main


@pytest.mark.parametrize("number", [3, 4, 6])
def test_the_benchmark_takes_its_options(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = importlib.import_module("benchmarks.gpu.__main__")
    joined = SCRIPT.read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^part \d+ +{number}-\S+ +python3 -m benchmarks.gpu (.*)$", joined, re.MULTILINE)
    monkeypatch.setattr("sys.argv", ["gpu", *line.split()])
    assert gpu.read_options().json
