"""Both services, as on a GPU, on a CPU."""

import json
import subprocess
import sys

import pytest

from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.slow


def test_both_services_run_and_agree() -> None:
    options = ["--device", "cpu", "--prompts", "1", "--tokens", "64", "--swaps", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.services", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = {line["figure"]: line["value"] for line in map(json.loads, done.stdout.splitlines())}
    assert figures["verifier"]["event"] == "model loaded" and figures["drafter"]["event"] == "model loaded"
    assert figures["outputs that are the plain ones"] == "1 of 1"
    for when in ("before swaps", "after 1 swaps", "after 2 swaps"):
        assert figures[f"memory {when}, MiB"] > 50
    counts = []
    for when in ("outputs during swaps", "outputs, the drafter's death included,"):
        same, asked = map(int, figures[f"{when} that are the plain ones"].split(" of "))
        assert same == asked > 0
        counts.append(asked)
    assert counts[1] >= counts[0] + 2
