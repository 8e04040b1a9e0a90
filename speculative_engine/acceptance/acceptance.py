"""The rule of acceptance that a request asks for, and its thresholds. Pure Python."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

from speculative_engine.field_error import FieldError


class RuleName(enum.Enum):
    """The rules."""

    COUPLED = "coupled"
    REJECTION = "rejection"
    TYPICAL = "typical"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A rule with its thresholds; each rule reads its own."""

    rule: RuleName = RuleName.COUPLED
    threshold: float = 0.5
    """threshold: the least probability under the target, in (0, 1]."""
    posterior_threshold: float = 0.09
    """typical: the most that is asked of a token's probability, in (0, 1]. Default as in Medusa."""
    posterior_alpha: float = 0.3
    """typical: what is asked of it is at most this times exp(-entropy), in (0, 1]. Default as in Medusa."""

    @property
    def lossless(self) -> bool:
        """Whether the output is distributed as the target's alone."""
        return self.rule in (RuleName.COUPLED, RuleName.REJECTION)

    @property
    def draws(self) -> bool:
        """Whether drafters have to draw their tokens and say from what."""
        return self.rule is RuleName.REJECTION

    def validate(self, prefix: str = "speculation") -> Self:
        """Return self, or raise `FieldError` for the first threshold out of range, named ``<prefix>.<field>``."""
        for field in ("threshold", "posterior_threshold", "posterior_alpha"):
            value = getattr(self, field)
            if not 0 < value <= 1:  # NaN fails every comparison, so it lands here too
                raise FieldError(f"{prefix}.{field}", f"must be in (0, 1], got {value}")
        return self


COUPLED = Acceptance()
"""The default: a draft token is kept where it is the target's own."""
