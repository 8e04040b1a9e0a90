"""Services on CPUs do not import packages that only GPUs or losses need, and leave them importable."""

import os
import subprocess
import sys

import pytest

from service_runtime.process.unneeded_packages import UNNEEDED
from tests.harness.checkout import ROOT

_PROGRAM = """
import importlib, sys
from service_runtime.process.unneeded_packages import UNNEEDED, without_unneeded_packages
if sys.argv[3] == "imported before":
    import scipy
with without_unneeded_packages(sys.argv[2]):
    importlib.import_module(sys.argv[1])
print(*sorted({*UNNEEDED} & {*sys.modules}))
import scipy.optimize, triton
"""


@pytest.mark.parametrize(
    ("module", "device", "before", "found"),
    [
        ("verifier_service.service", "cpu", "nothing before", []),
        ("drafter_service.service", "cpu", "nothing before", []),
        ("verifier_service.service", "cpu", "imported before", ["scipy"]),
        ("verifier_service.service", "cuda", "nothing before", ["scipy", "triton"]),
    ],
)
def test_what_a_service_imports(module: str, device: str, before: str, found: list[str]) -> None:
    assert {"scipy", "triton"} <= {*UNNEEDED}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, module, device, before],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == found
