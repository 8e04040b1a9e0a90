"""The script of the first minutes on a GPU, with a stand-in for Python that only records what it is asked to run."""

import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

SCRIPT = ROOT / "scripts" / "first_gpu.sh"


def asked(tmp_path: Path, **variables: str) -> dict[str, str]:
    """Runs the script; returns the command of each part by the log that it wrote."""
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "ran $*"\n')
    python.chmod(0o755)
    out = tmp_path / "out"
    done = subprocess.run(
        ["sh", SCRIPT],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(out), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    logs = {log.stem: log.read_text() for log in sorted(out.glob("*.log"))}
    assert all(log in done.stdout for log in logs.values())
    return logs


def test_parts_fit_into_ten_minutes_and_are_there(tmp_path: Path) -> None:
    limits = [int(limit) for limit in re.findall(r"^part (\d+) ", SCRIPT.read_text(), re.MULTILINE)]
    assert len(limits) == 7 and sum(limits) <= 590
    logs = asked(tmp_path)
    assert [name[0] for name in logs] == list("1234567")
    for log in logs.values():
        module = log.split()[2]
        assert importlib.import_module(f"{module}.__main__" if module == "benchmarks.gpu" else module).main
        assert " cuda" in log and "cpu" not in log


def test_it_can_be_rehearsed_without_a_gpu(tmp_path: Path) -> None:
    logs = asked(tmp_path, DEVICE="cpu")
    assert len(logs) == 7
    for log in logs.values():
        assert " cpu" in log and "cuda" not in log and "llama-8b" not in log


@pytest.mark.parametrize("number", [3, 4, 6])
def test_the_benchmark_takes_its_options(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = importlib.import_module("benchmarks.gpu.__main__")
    joined = SCRIPT.read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^part \d+ +{number}-\S+ +python3 -m benchmarks.gpu (.*)$", joined, re.MULTILINE)
    given = line.replace('"$DEVICE"', "cuda").replace('"$SHAPE"', "llama-8b").replace('"$RESULTS"', "out").split()
    monkeypatch.setattr("sys.argv", ["gpu", *given])
    options = gpu.read_options()
    assert options.json and options.results == Path("out")
    # A part that hangs leaves time for the next one.
    limit = re.search(rf"^part (\d+) +{number}-", joined, re.MULTILINE)
    assert limit is not None and options.part_seconds < int(limit[1])
