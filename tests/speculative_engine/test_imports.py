"""What the engine can be imported without: packages that only services or CPUs need."""

import subprocess
import sys

from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE

LACKING = """
import sys
for name in (
    "accelerate", "gguf", "google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "llguidance",
    "prometheus_client", "psutil", "pydantic", "pydantic_settings", "structlog", "torchao", "uvloop",
):
    sys.modules[name] = None  # an import of it fails
import benchmarks.gpu.__main__
import benchmarks.gpu.kernel_profile
import benchmarks.gpu.probe
import speculative_engine.in_process
"""


def test_torch_and_transformers_are_enough_for_the_engine_on_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LACKING], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
