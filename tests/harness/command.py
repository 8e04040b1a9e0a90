"""Runs the command line in this process."""

import io
import sys
from dataclasses import dataclass

import pytest

from draftwire.cli import main


@dataclass
class Outcome:
    code: int
    out: str
    err: str


class Command:
    """Runs `draftwire ARGUMENTS`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, stdin: str = "") -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["draftwire", *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self._capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)
