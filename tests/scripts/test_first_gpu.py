"""The script of the minutes on a GPU, with a stand-in for Python that only records what it is asked to run."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu.questions.__main__ import LONGEST, questions, read_options
from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

SCRIPT = ROOT / "scripts" / "first_gpu.sh"


def asked(tmp_path: Path, **variables: str) -> str:
    """Runs the script; returns the arguments of the queue."""
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
    (answer,) = (out / "answers.jsonl").read_text().splitlines()
    assert answer in done.stdout
    head = "ran -m benchmarks.gpu.questions "
    assert answer.startswith(head)
    return answer.removeprefix(head)


def test_it_asks_the_head_of_the_queue(tmp_path: Path) -> None:
    options = read_options(shlex.split(asked(tmp_path)))
    assert (options.device, options.minutes, options.names) == ("cuda", 14.0, [])
    assert options.results == tmp_path / "out" / "results"
    assert 60 * options.minutes >= LONGEST * min(3, len(questions()))


def test_it_can_be_rehearsed_without_a_gpu(tmp_path: Path) -> None:
    options = read_options(shlex.split(asked(tmp_path, DEVICE="cpu", MINUTES="3")))
    assert (options.device, options.minutes) == ("cpu", 3.0)
