"""The cells of the matrix, and the section of a document that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftwire_tools.check.case import CaseResult

_CONDITIONS = ("processor", "cores", "commit")


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests with one option and one drafter, run in one way, compared with plain decoding."""

    option: str
    drafter: str
    way: str
    requests: int
    differing: int
    tokens_per_step: float
    """Tokens that a step of the target commits; 1 without drafters."""
    speed: float | None
    """Speed relative to plain decoding in the same run; None where requests run at once or are cut."""
    resumes: int

    @classmethod
    def of(cls, drafter: str, way: str, found: CaseResult, speed: float | None) -> Cell:
        """Returns the cell of what was found for an option."""
        return cls(
            found.sampling,
            drafter,
            way,
            found.compared,
            found.compared - found.equal,
            round(found.tokens / found.steps, 2) if found.steps else 0.0,
            None if speed is None else round(speed, 2),
            found.resumes,
        )

    @property
    def line(self) -> str:
        """The cell in a line."""
        return (
            f"{self.option:26} {self.drafter:28} {self.differing} of {self.requests} differ, "
            f"{self.tokens_per_step:.2f} tokens a step"
        )


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
