"""Progress of long commands where there is no terminal."""

import io

import pytest
from rich.console import Console

from draftwire_tools import progress
from draftwire_tools.progress import CountedLines, download, status


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


def test_a_download_is_told_when_it_begins_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out)
    with download(console, "heads", "a hub", 30_000_000):
        pass
    assert out.getvalue() == ""  # nothing was missing
    with download(console, "heads", "a hub", 30_000_000) as advance:
        advance(0)
        advance(10_000_000)
    assert out.getvalue() == "fetching heads from a hub, once (30 MB) ...\n"
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with download(console, "heads", "a hub", 30_000_000) as advance:
        advance(1)
        advance(10_500_000)
    assert out.getvalue().endswith("(30 MB) ...\nfetching heads: 10 of 30 MB\n")


def test_a_download_is_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with download(console, "heads", "a hub", 30_000_000) as advance:
        advance(10_000_000)
    assert "fetching heads, once" in out.getvalue()
    assert "30.0/30.0 MB" in out.getvalue()
