"""What the engine and the services can be imported without: packages that others need."""

import subprocess
import sys

import pytest

from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE

LACKING = """
import importlib, sys
modules, lacking = (text.split() for text in sys.argv[1:])
for name in lacking:
    sys.modules[name] = None  # an import of it fails
for name in modules:
    importlib.import_module(name)
"""
ENGINE = """
benchmarks.gpu.__main__ benchmarks.gpu.kernel_profile benchmarks.gpu.probe speculative_engine.in_process
"""
SERVICES = "verifier_service.service verifier_service.target drafter_service.service"
OPTIONAL = "accelerate gguf psutil"
OF_SERVICES = """
google grpc grpc_health grpc_reflection grpc_status llguidance prometheus_client pydantic pydantic_settings structlog
uvloop
"""


@pytest.mark.parametrize(
    ("modules", "lacking"),
    [(ENGINE, OPTIONAL + OF_SERVICES), (SERVICES, OPTIONAL)],
    ids=["the engine, with torch and transformers alone", "the services, without optional packages"],
)
def test_on_a_gpu_few_packages_are_enough(modules: str, lacking: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LACKING, modules, lacking],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
