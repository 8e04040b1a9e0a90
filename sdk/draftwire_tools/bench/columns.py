"""The columns of a comparison's tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftwire_tools.bench.figures import Figures, Percentiles
from draftwire_tools.spread import Spread

_LEAST_RUNS = 3
"""Number of runs from which a range is reported."""
_UNKNOWN = "?"
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """The data of a row."""

    figures: Figures
    """The figures of one method for one setting."""
    process_bytes: int | None
    """Resident memory of the method's drafter services, if known."""


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """A column of a table."""

    heading: str
    """The column's heading."""
    align: str
    """The column's alignment, ``<`` or ``>``."""
    cell: Callable[[Row], str]
    """Function that returns the text of a row's cell."""


def _spread(spread: Spread, runs: int) -> str:
    """Returns the median, with the range if there are enough runs."""
    if runs < _LEAST_RUNS:
        return f"{spread.median:.2f}"
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def _drafted(cell: Callable[[Row], str]) -> Callable[[Row], str]:
    """Leaves a cell of plain decoding empty."""
    return lambda row: _NONE if row.figures.method.is_plain else cell(row)


def _milliseconds(times: Percentiles | None) -> str:
    return _NONE if times is None else " / ".join(f"{1000 * time:.1f}" for time in (times.p50, times.p95, times.p99))


def _percent(share: float | None, missing: str) -> str:
    return missing if share is None else f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB"


@_drafted
def _memory(row: Row) -> str:
    method = row.figures.method
    told = [f"weights {_megabytes(method.weights_bytes)}"] if method.weights_bytes else []
    told += [f"process {_megabytes(row.process_bytes)}"] if row.process_bytes is not None else []
    return ", ".join(told) or "not reported"


@_drafted
def _training(row: Row) -> str:
    method = row.figures.method
    each = [_UNKNOWN if needs is None else needs.training for needs in method.needs]
    needed = [training for training in dict.fromkeys(each) if training != "no"]
    return ", ".join(needed) or "no"


@_drafted
def _draft_model(row: Row) -> str:
    method = row.figures.method
    if any(needs is not None and needs.draft_model for needs in method.needs):
        return "yes"
    return _UNKNOWN if None in method.needs else "no"


@_drafted
def _lossless(row: Row) -> str:
    return "yes" if row.figures.method.exact else "in distribution" if row.figures.lossless else "no"


@_drafted
def _outputs(row: Row) -> str:
    figures = row.figures
    if not figures.differing:
        return f"{figures.requests} equal"
    return f"{figures.differing} of {figures.requests} differ, {figures.drift:.0%} of tokens"


def _name(row: Row) -> str:
    return row.figures.method.name


FEW = ("method", "speed-up", "tokens/s", "accepted", "length", "outputs", "memory", "draft model", "lossless")
"""Headings of the columns shown on a narrow terminal; files have all columns."""
FIGURES = (
    FigureColumn("method", "<", _name),
    FigureColumn("speed-up", ">", lambda row: _spread(row.figures.speed_up, row.figures.runs)),
    FigureColumn("tokens/s", ">", lambda row: f"{row.figures.tokens_per_second.median:.3g}"),
    FigureColumn("accepted", ">", lambda row: _percent(row.figures.acceptance_rate, _NONE)),
    FigureColumn("length", ">", lambda row: f"{row.figures.acceptance_length:.2f}"),
    FigureColumn("drafting", ">", lambda row: _percent(row.figures.draft_share, _UNKNOWN)),
    FigureColumn("rollback", ">", lambda row: _percent(row.figures.rollback_share, _UNKNOWN)),
    FigureColumn("first token ms", ">", lambda row: _milliseconds(row.figures.first_token)),
    FigureColumn("token ms", ">", lambda row: _milliseconds(row.figures.token_gap)),
    FigureColumn("chunk ms", ">", lambda row: _milliseconds(row.figures.chunk_gap)),
    FigureColumn("outputs", "<", _outputs),
)
"""Columns of what was measured for a setting; times are p50 / p95 / p99."""
ABOUT = (
    FigureColumn("method", "<", _name),
    FigureColumn("memory", "<", _memory),
    FigureColumn("draft model", "<", _draft_model),
    FigureColumn("training", "<", _training),
    FigureColumn("lossless", "<", _lossless),
)
"""Columns of a method's properties."""
