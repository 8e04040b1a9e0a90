"""Rendering of a snapshot as lines of text that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rich.text import Text

from draftwire_tools.top.column import Cell, Column, cut, table
from draftwire_tools.top.drafter_figures import DrafterFigures
from draftwire_tools.top.event import Event
from draftwire_tools.top.planner_figures import PlannerFigures, cost_of
from draftwire_tools.top.snapshot import ORDERS, Snapshot
from draftwire_tools.top.verifier_figures import PARTS, VerifierFigures

T = TypeVar("T")

_STYLES = {
    "ready": "green",
    "unreachable": "bold red",
    "suspended": "red",
    "connecting": "yellow",
    "draining": "yellow",
}
_ROWS = (1, 4, 16)
"""Numbers of rows whose cost is shown."""
_SHOWN_EVENTS = 8
"""Number of events shown if the height is not limited."""
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Layout:
    """The space available, and the user's choices."""

    width: int | None = None
    """Characters per line; None means no limit."""
    height: int | None = None
    """Number of lines; None means no limit."""
    order: str = "age"
    """Order of the drafters, one of ``ORDERS``."""
    interval: float = 1.0
    """Seconds from one reading to the next."""
    paused: bool = False
    keys: bool = False
    """Whether there is a keyboard, so that its keys are listed."""


def lines(snapshot: Snapshot, layout: Layout) -> list[Text]:
    """Returns the lines that show a snapshot.

    If the height does not suffice, drafters are omitted from the end of the list, then events, the planner, and the
    time by phase. Verifiers always stay.
    """
    several = len(snapshot.verifiers) > 1
    ready = [each for each in snapshot.verifiers if each.state == "ready"]
    head = [_head(snapshot, layout)]
    verifiers = table(_verifier_columns(snapshot.verifiers), layout.width)
    errors = [Text(f"{each.address}: {each.error}", "red") for each in snapshot.verifiers if each.error]
    drafters = sorted(snapshot.drafters, key=ORDERS[layout.order])
    shares = table(_share_columns(ready), layout.width) if ready else []
    planner = table(_planner_columns(ready), layout.width) if ready else []
    pool = table(_drafter_columns(drafters, several), layout.width) if drafters else []
    if ready and not drafters:
        pool = [Text("no drafter is attached")]
    faults = [
        Text(f"{each.name}{f' at {each.verifier}' if several else ''}: {each.error}", "red")
        for each in drafters
        if each.error and each.state != "ready"
    ]
    events = _events(snapshot.events, several)
    keys = [_keys(layout)] if layout.keys else []

    fixed = [*head, Text(), *verifiers, *errors]
    room = None if layout.height is None else layout.height - len(fixed) - len(keys)
    body = _fit([(3, shares), (2, planner), (4, [*pool, *faults]), (1, events)], room)
    shown = [cut(line, layout.width) for line in [*fixed, *body]]
    if layout.height is None:
        return shown + keys
    shown = shown[: max(layout.height - len(keys), 0)]
    shown += [Text()] * (layout.height - len(keys) - len(shown))
    return (shown + [cut(line, layout.width) for line in keys])[: layout.height]


def _fit(sections: Sequence[tuple[int, list[Text]]], room: int | None) -> list[Text]:
    """Returns the sections in order, each after an empty line, without those of the lowest ranks that do not fit. The
    section of the highest rank is shortened."""
    given = {rank: lines for rank, lines in sections if lines}
    highest = max(rank for rank, _ in sections)
    if room is not None:
        left = room
        for rank in sorted(given, reverse=True):
            least = min(len(given[rank]), 3)  # an empty line, headings, and one row at least
            size = len(given[rank]) + 1
            if size > left:
                more = len(given[rank]) - (left - 2)
                fits = left > least and rank in (highest, 1)
                end = [Text(f"and {more} more lines", "dim")] if rank == highest else []
                kept = left - 1 - len(end)
                given[rank] = [*given[rank][:kept], *end] if fits else []
                size = len(given[rank]) + 1 if given[rank] else 0
            left -= size
    return [line for rank, _ in sections if given.get(rank) for line in [Text(), *given[rank]]]


def _head(snapshot: Snapshot, layout: Layout) -> Text:
    lost = sum(each.state == "unreachable" for each in snapshot.verifiers)
    line = Text("draftwire top", "bold")
    line.append(f"  {snapshot.at.astimezone():%H:%M:%S}", "default")
    line.append(f"  every {layout.interval:g} s", "default")
    line.append(f"  {_count(len(snapshot.verifiers), 'verifier')}", "default")
    if lost:
        line.append(f", {lost} unreachable", "bold red")
    line.append(f"  {_count(len(snapshot.drafters), 'drafter')}", "default")
    if layout.paused:
        line.append("  PAUSED", "bold yellow")
    return line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _keys(layout: Layout) -> Text:
    keys = {"q": "quit", "p": "resume" if layout.paused else "pause", "s": f"sort: {layout.order}", "+ -": "interval"}
    line = Text()
    for key, what in keys.items():
        line.append(f" {key} ", "reverse").append(f" {what}  ")
    return line


def _verifier_columns(verifiers: Sequence[VerifierFigures]) -> list[Column]:
    def planner(what: Callable[[PlannerFigures], str]) -> Callable[[VerifierFigures], str]:
        return lambda each: what(each.planner) if each.planner else _NONE

    return [
        _column("VERIFIER", "<", 0, verifiers, lambda each: each.address),
        _column("STATE", "<", 0, verifiers, lambda each: each.state, styled=True),
        _column("MODEL", "<", 5, verifiers, lambda each: each.model or _NONE),
        _column("DTYPE", "<", 8, verifiers, lambda each: each.dtype or _NONE),
        _column("DEVICE", "<", 9, verifiers, lambda each: each.device or _NONE),
        _column("UP", ">", 6, verifiers, lambda each: _duration(each.uptime_seconds)),
        _column("RUN", ">", 1, verifiers, lambda each: _whole(each.running)),
        _column("WAIT", ">", 2, verifiers, lambda each: _whole(each.waiting)),
        _column("REQ/S", ">", 7, verifiers, lambda each: _rate(each.requests_per_second)),
        _column("KV SLOTS", ">", 4, verifiers, _slots),
        _column("CACHED", ">", 9, verifiers, lambda each: _whole(each.cached_slots)),
        _column("PREEMPTED", ">", 9, verifiers, lambda each: _whole(each.preemptions)),
        _column("TOK/S", ">", 1, verifiers, lambda each: _rate(each.tokens_per_second)),
        _column("STEPS/S", ">", 3, verifiers, lambda each: _rate(each.steps_per_second)),
        _column("SPEED-UP", ">", 2, verifiers, planner(lambda each: _times(each.speed_up))),
    ]


def _slots(verifier: VerifierFigures) -> str:
    return _NONE if verifier.total_slots is None else f"{verifier.used_slots}/{verifier.total_slots}"


def _share_columns(verifiers: Sequence[VerifierFigures]) -> list[Column]:
    def share(part: str) -> Callable[[VerifierFigures], str]:
        return lambda each: _share(each.time_shares[part] if each.time_shares else None)

    ranks = {
        "forward": 0,
        "wait": 1,
        "draft": 2,
        "sample": 3,
        "plan": 4,
        "walk": 5,
        "wire": 6,
        "layout": 7,
        "rollback": 8,
    }
    return [
        _column("TIME OF STEPS", "<", 0, verifiers, lambda each: each.address),
        _column("MS/STEP", ">", 2, verifiers, lambda each: _milliseconds(each.step_seconds)),
        *(_column(part.upper(), ">", ranks[part], verifiers, share(part)) for part in PARTS),
        _column("IDLE", ">", 1, verifiers, _idle),
    ]


def _idle(verifier: VerifierFigures) -> str:
    shares = verifier.time_shares
    return _share(None if shares is None else max(1.0 - sum(shares.values()), 0.0))


def _planner_columns(verifiers: Sequence[VerifierFigures]) -> list[Column]:
    def planner(what: Callable[[PlannerFigures], str]) -> Callable[[VerifierFigures], str]:
        return lambda each: what(each.planner) if each.planner else _NONE

    def cost(rows: int) -> Callable[[VerifierFigures], str]:
        return lambda each: _milliseconds(cost_of(rows, each.step_costs or ()))

    return [
        _column("PLANNER", "<", 0, verifiers, lambda each: each.address),
        *(
            _column(f"C({rows}) MS", ">", rank, verifiers, cost(rows))
            for rows, rank in zip(_ROWS, (3, 5, 4), strict=True)
        ),
        _column("SEQS/STEP", ">", 6, verifiers, planner(lambda each: _number(each.sequences_per_step))),
        _column("CHOSEN", ">", 1, verifiers, planner(lambda each: _number(each.draft_tokens_per_sequence))),
        _column("LAST", ">", 7, verifiers, planner(lambda each: str(each.last_draft_tokens))),
        _column("TOK/STEP", ">", 0, verifiers, planner(lambda each: _number(each.tokens_per_sequence))),
        _column("PLAIN TOK/S", ">", 3, verifiers, planner(lambda each: _rate(each.plain_tokens_per_second))),
        _column("WAITS/S", ">", 4, verifiers, planner(lambda each: _rate(each.waits_per_second))),
        _column("GAINED TOK/S", ">", 2, verifiers, planner(lambda each: f"{each.gained_tokens_per_second:+.1f}")),
    ]


def _drafter_columns(drafters: Sequence[DrafterFigures], several: bool) -> list[Column]:
    columns = [
        _column("DRAFTER", "<", 0, drafters, lambda each: each.name),
        _column("ADDRESS", "<", 5, drafters, lambda each: each.address if each.address != each.name else ""),
        _column("MODEL", "<", 7, drafters, lambda each: each.model or _NONE),
        _column("STATE", "<", 0, drafters, lambda each: each.state, styled=True),
        _column("SEQS", ">", 1, drafters, lambda each: str(each.sequences)),
        _column("ACCEPTED", ">", 1, drafters, lambda each: _share(each.acceptance_rate)),
        _column("NOW", ">", 4, drafters, lambda each: _share(each.recent_acceptance_rate)),
        _column("NODES/S", ">", 2, drafters, lambda each: _rate(each.draft_tokens_per_second)),
        _column("STALE/S", ">", 5, drafters, lambda each: _rate(each.stale_nodes_per_second)),
        _column("MS/STEP", ">", 4, drafters, lambda each: _milliseconds(each.step_seconds)),
        _column("RTT MS", ">", 3, drafters, lambda each: _milliseconds(each.response_seconds)),
        _column("ACC/S", ">", 6, drafters, lambda each: _rate(each.accepted_per_second or None)),
        _column("LEARNED", ">", 5, drafters, _learned),
    ]
    if several:
        columns.insert(1, _column("VERIFIER", "<", 3, drafters, lambda each: each.verifier))
    return columns


def _learned(drafter: DrafterFigures) -> str:
    """Returns the version and the agreement before and after; nothing if nothing learns, so that there is no column."""
    if drafter.learned_version is None:
        return ""
    if drafter.agreement is None:
        return f"v{drafter.learned_version}"
    return f"v{drafter.learned_version} {_share(drafter.first_agreement)} -> {_share(drafter.agreement)}"


def _events(events: Sequence[Event], several: bool) -> list[Text]:
    """Returns the events, newest first."""
    if not events:
        return []
    told = [Text("EVENTS", "bold")]
    for event in reversed(events[-_SHOWN_EVENTS:]):
        line = Text(f"{event.at.astimezone():%H:%M:%S}  ", "dim")
        told.append(line.append(f"{event.verifier}  " if several else "", "dim").append(event.what, "default"))
    return told


def _column(
    heading: str,
    align: Literal["<", ">"],
    rank: int,
    rows: Iterable[T],
    text: Callable[[T], str],
    *,
    styled: bool = False,
) -> Column:
    texts = [text(row) for row in rows]
    return Column(heading, align, rank, [Cell(each, _STYLES.get(each, "") if styled else "") for each in texts])


def _whole(number: int | None) -> str:
    return _NONE if number is None else str(number)


def _number(number: float | None) -> str:
    return _NONE if number is None else f"{number:.2f}"


def _rate(number: float | None) -> str:
    if number is None:
        return _NONE
    return f"{number:.0f}" if number >= 10 or number == 0 else f"{number:.1f}"


def _times(number: float | None) -> str:
    return _NONE if number is None else f"{number:.2f}x"


def _share(share: float | None) -> str:
    return _NONE if share is None else f"{share:.0%}"


def _milliseconds(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds * 1000:.1f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _NONE
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
