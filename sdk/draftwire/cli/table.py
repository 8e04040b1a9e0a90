"""A table of plain text."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> None:
    """Print rows under headings; ``align`` has ``<`` or ``>`` for each column. No cell is ever cut."""
    rows = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{align[index]}{widths[index]}}" for index, cell in enumerate(row)).rstrip())
