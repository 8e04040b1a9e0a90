"""Progress of long commands where there is no terminal."""

import io

import pytest
from rich.console import Console

from draftwire_tools import progress
from draftwire_tools.progress import CountedLines, status


def test_parts_are_lines() -> None:
    out = io.StringIO()
    with status(Console(file=out), "comparing") as shown:
        shown("plain decoding")
        shown("distributions")
    assert out.getvalue() == "comparing: plain decoding\ncomparing: distributions\n"


def test_counts_are_written_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    lines = CountedLines(Console(file=out), "measuring", 3)
    for _ in range(3):
        lines.advance()
    assert out.getvalue() == "measuring: 1 of 3\nmeasuring: 3 of 3\n"
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    lines = CountedLines(Console(file=out), "again", 2)
    lines.advance()
    lines.advance()
    assert out.getvalue().endswith("again: 1 of 2\nagain: 2 of 2\n")
