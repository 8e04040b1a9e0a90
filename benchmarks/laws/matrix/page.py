"""The matrix as a section of a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.laws.matrix.cell import Cell

_CONDITIONS = ("processor", "cores", "commit")


def section(cells: Sequence[Cell], about: Mapping[str, object]) -> str:
    """Returns the table, with the verdict above and the conditions below. about: the machine and versions."""
    drafters = list(dict.fromkeys(cell.drafter for cell in cells))
    options = list(dict.fromkeys(cell.option for cell in cells))
    differing, requests = sum(cell.differing for cell in cells), sum(cell.requests for cell in cells)
    lines = [
        f"**{differing} of {requests} outputs differ.** {sum(cell.resumes for cell in cells)} requests were resumed.\n",
        f"| tokens a step | {' | '.join(drafters)} |",
        f"|---|{'---|' * len(drafters)}",
    ]
    for option in options:
        row = [_shown([cell for cell in cells if (cell.option, cell.drafter) == (option, each)]) for each in drafters]
        lines.append(f"| {option} | {' | '.join(row)} |")
    told = ", ".join(f"{name} {value}" for name, value in about.items() if name in _CONDITIONS)
    return "\n".join([*lines, f"\n{told[:1].upper()}{told[1:]}."])


def _shown(ways: Sequence[Cell]) -> str:
    """The cells of one option and one drafter: tokens a step of requests alone, or how many differ."""
    differing = sum(cell.differing for cell in ways)
    if differing:
        return f"**{differing} of {sum(cell.requests for cell in ways)} differ**"
    return f"{ways[0].tokens_per_step:.2f}"
