"""A whole verifier takes little more memory than its weights and its KV cache, from its start on."""

import json
import os
import subprocess
import sys

import pytest

from draftwire_core.engine.kernels.library import library
from tests.harness.checkout import MODELS, ROOT

pytestmark = pytest.mark.slow

_OWN = 400
"""Megabytes for Python, torch, transformers, and the service itself."""


@pytest.mark.skipif(sys.platform != "linux" or library() is None, reason="the peak is that of the compiled products")
def test_the_peak_of_a_verifier() -> None:
    command = [sys.executable, "-m", "verifier_service", "--model", str(MODELS / "target"), "--listen", "127.0.0.1:0"]
    command += ["--weights", "q4_0", "--kv-slots", "4096", "--threads", "1", "--log-format", "json"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "0"},  # with the interpreter triton is imported after all
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as verifier:
        assert verifier.stdout is not None
        lines = []
        for line in verifier.stdout:
            lines.append(line)
            if "model loaded" in line:
                break
        verifier.kill()
    ready = json.loads(lines[-1])
    assert ready["event"] == "model loaded", "".join(lines)
    weights = ready["parameters"] * 4.5 / 8 / 1e6
    assert ready["peak_megabytes"] <= 1.15 * weights + ready["kv_megabytes"] + _OWN, ready
