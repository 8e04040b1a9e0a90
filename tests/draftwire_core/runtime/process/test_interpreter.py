"""Threads take the interpreter from each other more often where a model is on a GPU."""

import os
import sys

import pytest

from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
from draftwire_core.engine.device import choices
from {service}.process import main
choices.gpus_here = lambda: choices.Gpus(("a GPU", "another"))
status = main(["--listen", "127.0.0.1:0", "--model", "/not/there", "--device", sys.argv[1]])
print(status, sys.getswitchinterval())
"""


@pytest.mark.parametrize("service", ["verifier_service", "drafter_service"])
@pytest.mark.parametrize(("device", "seconds"), [("cpu", "0.005"), ("cuda", "0.0005"), ("cuda:1", "0.0005")])
def test_on_gpus_it_is_more_often(service: str, device: str, seconds: str) -> None:
    done = processes.run(
        [sys.executable, "-c", PROGRAM.format(service=service), device],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
    )
    assert done.stdout.splitlines()[-1:] == [f"1 {seconds}"], done.stderr
