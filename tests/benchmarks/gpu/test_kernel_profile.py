"""The profile of engine steps, tried on a CPU."""

import re
import sys

import pytest

from benchmarks.gpu import kernel_profile

pytestmark = pytest.mark.slow


def test_steps_are_profiled(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--shape", "pair", "--context", "16", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["kernel_profile", *options])
    kernel_profile.main()
    out = capfd.readouterr().out
    assert out.count("0 kernels and copies a step") == 3 and out.count("aten::") >= 3
    for kind in ("graphs", "graphs, drafted", "no graphs"):
        assert re.search(rf"^{kind}: [\d.]+ ms a step, its kernels and copies 0.000$", out, re.MULTILINE)
