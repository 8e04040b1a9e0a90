"""The sampler's kernels compile to the machine code of GPUs, by operations that round as the compiled sampler's do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT

pytest.importorskip("triton")

pytestmark = pytest.mark.slow

DIVISIONS = {
    "least_kept": ["div.rn.f32"],
    "best_of_slices": ["div.rn.f32", "div.rn.f64"],
    "follow_best": [],
    "rank_slices": ["div.rn.f32", "div.rn.f64"],
    "rank_rows": ["div.rn.f32"],
}
PROBABILITIES = ("rank_slices", "rank_rows", "least_kept")


def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "sdk")])
    command = [sys.executable, "-m", "tests.harness.kernels.compile_sampler"]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    kernels = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {(each["kernel"], each["capability"]) for each in kernels} == {
        (name, capability)
        for name in ("best_of_slices", "follow_best", "rank_slices", "rank_rows", "least_kept")
        for capability in (80, 90)
    }
    for each in kernels:
        kernel = str(each["kernel"])
        assert each["machine_code"] > 1000 and each["spilled"] == []
        # A product and a sum that are fused round once, approximate divisions differently.
        assert each["divisions"] == DIVISIONS[kernel]
        if kernel != "rank_rows":  # whose logarithm is of the GPU's library
            assert each["fused"] == []
        # Exponentials are for probabilities, on which only the edges of top-p depend, and these on one device.
        assert each["approximate"] == (["ex2.approx.f32"] if kernel in PROBABILITIES else [])
