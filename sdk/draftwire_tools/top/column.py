"""Responsive tables, which omit their least important columns on a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text

_GAP = "  "
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with its style."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str
    align: Literal["<", ">"]
    rank: int
    """Columns of the highest rank are omitted first; those of rank 0 always stay and are shortened."""
    cells: Sequence[Cell]

    @property
    def width(self) -> int:
        """Characters of its widest text."""
        return max([len(self.heading), *(len(cell.text) for cell in self.cells)])


def table(columns: Sequence[Column], width: int | None) -> list[Text]:
    """Returns headings and rows as lines of at most ``width`` characters; None means no limit."""
    shown = [column for column in columns if any(cell.text for cell in column.cells)]
    while width is not None and _width(shown) > width and any(column.rank for column in shown):
        last = max(reversed(shown), key=lambda column: column.rank)
        shown = [column for column in shown if column is not last]
    rows = len(columns[0].cells)
    lines = [_line([Cell(column.heading, "bold") for column in shown], shown)]
    lines += [_line([column.cells[row] for column in shown], shown) for row in range(rows)]
    return [cut(line, width) for line in lines]


def cut(line: Text, width: int | None) -> Text:
    """Returns a line cut to ``width`` characters, with a mark where it was cut."""
    if width is None or len(line) <= width:
        return line
    return line[: max(width - 1, 0)].append(_CUT if width else "")


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * max(len(columns) - 1, 0)


def _line(cells: Sequence[Cell], columns: Sequence[Column]) -> Text:
    line = Text()
    for index, (cell, column) in enumerate(zip(cells, columns, strict=True)):
        line.append(_GAP if index else "")
        line.append(f"{cell.text:{column.align}{column.width}}", cell.style)
    line.rstrip()
    return line
