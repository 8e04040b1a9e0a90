"""One cell of the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.laws.matrix.endpoints import Outcome


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
    def of(
        cls,
        option: str,
        drafter: str,
        way: str,
        expected: Sequence[Outcome],
        found: Sequence[Outcome],
        speed: float | None,
    ) -> Cell:
        """expected: of plain decoding, in the same order as those found."""
        differing = sum(one.output != other.output for one, other in zip(expected, found, strict=True))
        steps = sum(one.steps for one in found)
        return cls(
            option,
            drafter,
            way,
            len(found),
            differing,
            round(sum(one.tokens for one in found) / steps, 2) if steps else 0.0,
            None if speed is None else round(speed, 2),
            sum(one.resumes for one in found),
        )

    @property
    def line(self) -> str:
        """The cell in a line."""
        return (
            f"{self.option:26} {self.drafter:28} {self.differing} of {self.requests} differ, "
            f"{self.tokens_per_step:.2f} tokens a step"
        )

    def as_dict(self) -> dict[str, Any]:
        """The cell's fields."""
        return asdict(self)
