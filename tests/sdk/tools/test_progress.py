"""Progress of long commands, on terminals and elsewhere."""

import io
import logging

import pytest
from rich.console import Console

from draftwire_tools import progress
from draftwire_tools.progress import CountedLines, LogLines, Pace, download, duration, status


class Clock:
    """A clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5999, "100 min"), (6000, "1.7 h")]
)
def test_a_time_is_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_rest_takes_as_long_as_what_is_done(clock: Clock) -> None:
    pace = Pace()
    assert pace.of(0.0) == "after 0 s"
    clock.now += 20
    assert pace.of(0.25) == "after 20 s, about 60 s left"
    assert pace.of(1.0) == "after 20 s"


def test_a_stage_is_a_line_in_a_pipe(clock: Clock) -> None:
    out = io.StringIO()
    with status(Console(file=out), "comparing") as shown:
        shown("plain decoding [1]", 0.0)
        clock.now += 30
        shown("distributions", 0.5)
    told = "comparing: plain decoding [1] (after 0 s)\ncomparing: distributions (after 30 s, about 30 s left)\n"
    assert out.getvalue() == told


def test_short_stages_have_a_line_now_and_then(clock: Clock) -> None:
    out = io.StringIO()
    with status(Console(file=out), "trying", 5.0) as shown:
        for place in range(4):
            shown(str(place), place / 4)
            clock.now += 3
    assert out.getvalue() == "trying: 0 (after 0 s)\ntrying: 2 (after 6 s, about 6 s left)\n"


def test_a_stage_changes_the_line_of_a_terminal() -> None:
    out = io.StringIO()
    with status(Console(file=out, force_terminal=True, width=120), "comparing") as shown:
        shown("distributions", 0.5)
    assert "comparing: distributions (after " in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K"), "the line is erased at the end"


def test_counts_are_written_now_and_then_and_at_the_end(clock: Clock) -> None:
    told: list[str] = []
    lines = CountedLines(told.append, "measuring", 4)
    for _ in range(4):
        clock.now += 4
        lines.advance()
    lines.advance(0)
    assert told == [
        "measuring: 1 of 4 (after 4 s, about 12 s left)",
        "measuring: 3 of 4 (after 12 s, about 4 s left)",
        "measuring: 4 of 4 (after 16 s)",
    ]


def test_events_of_a_log_are_lines() -> None:
    told: list[str] = []
    lines = LogLines(told.append, "a.log")
    log = logging.getLogger("a.log")
    log.info("download continued", extra={"megabytes": 3, "of": 7})
    log.debug("not told")
    log.info("ended")
    lines.close()
    log.warning("not told any more")
    assert told == ["download continued: megabytes 3, of 7", "ended"]


def test_a_download_is_told_when_it_begins_and_now_and_then(clock: Clock) -> None:
    out = io.StringIO()
    console = Console(file=out)
    with download(console, "heads", "a hub", 30_000_000):
        pass
    assert out.getvalue() == ""  # nothing was missing
    with download(console, "heads", "a hub", 30_000_000) as advance:
        advance(0)
        advance(10_000_000)
    assert out.getvalue() == "fetching heads from a hub, once (30 MB) ...\n"
    with download(console, "heads", "a hub", 30_000_000) as advance:
        advance(1)
        clock.now += 5
        advance(10_000_000)
    assert out.getvalue().endswith("(30 MB) ...\nfetching heads: 10 of 30 MB (after 5 s, about 10 s left)\n")


def test_a_download_is_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with download(console, "heads", "a hub", 30_000_000) as advance:
        advance(10_000_000)
    assert "fetching heads, once" in out.getvalue()
    assert "30.0/30.0 MB" in out.getvalue()


def test_a_terminal_without_a_cursor_gets_lines(clock: Clock) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True, width=100, _environ={"TERM": "dumb"})
    with download(console, "A model", "a place", 50_000_000) as advance, status(console, "reading") as shown:
        advance(0)
        shown("files", 0.0)
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue().splitlines() == [
            "fetching A model from a place, once (50 MB) ...",
            "reading: files (after 0 s)",
        ]
