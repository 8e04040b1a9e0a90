"""The probe of a GPU, tried on a CPU."""

import json
import sys

import pytest

from benchmarks.gpu import probe


def test_every_part_finds_something(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["probe", "cpu"])
    probe.main()
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert not [finding for finding in findings if "error" in finding]
    assert {finding["probe"] for finding in findings} == {
        "versions",
        "copy",
        "small kernel in a graph",
        "product",
        "gather of keys",
        "sampling",
        "bmm of inner size 1",
    }
    products = [finding["rows"] for finding in findings if finding["probe"] == "product"]
    assert products == [1, 2, 8, 16, 64, 65, 128, 256]


def test_a_part_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no kernel image")

    for name in ("products", "sampling"):
        monkeypatch.setattr(probe.Probe, name, fail)
    monkeypatch.setattr(sys, "argv", ["probe", "cpu"])
    probe.main()
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"probe": "fail", "error": "RuntimeError: no kernel image"} in findings
    assert findings[-1]["probe"] == "bmm of inner size 1"
