"""Code that ran while a process started no longer counts as its memory, and runs again when it is called."""

import subprocess
import sys

import pytest

from tests.harness.checkout import ROOT

_PROGRAM = """
import re
from pathlib import Path
import torch
from draftwire_core.runtime.process.memory import release_code_pages

def mapped():
    return int(re.search(r"RssFile:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

def product():
    return torch.arange(4096.0).view(64, 64) @ torch.arange(4096.0).view(64, 64)

before, expected = mapped(), product()
release_code_pages()
after = mapped()
print(before, after, torch.equal(product(), expected))
"""


pytestmark = pytest.mark.processes


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what is mapped")
def test_released_code_runs_again() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    before, after, equal = done.stdout.split()
    assert equal == "True"
    assert int(after) < int(before) - 30, done.stdout
