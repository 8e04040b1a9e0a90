"""The gain of drafting at a verifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from draftwire._types.from_message import From


@dataclass(frozen=True, slots=True)
class SpeculationGain:
    """Compares the time of steps with that of plain decoding, over the steps that decoded a request whose drafting the
    planner decides: one for which it is neither switched off nor forced. Counts only grow."""

    tokens: int
    """Tokens that these steps committed."""
    sequences: int
    """Sequences decoded, summed over these steps."""
    seconds: Annotated[float, From("time")]
    """Time of these steps, with drafting in the verifier and waiting for proposals."""
    plain_seconds: Annotated[float, From("plain_time")]
    """Estimated time of plain decoding of the same tokens."""

    def since(self, earlier: SpeculationGain) -> SpeculationGain:
        """Returns the counts since an earlier reading."""
        return SpeculationGain(
            self.tokens - earlier.tokens,
            self.sequences - earlier.sequences,
            self.seconds - earlier.seconds,
            self.plain_seconds - earlier.plain_seconds,
        )

    @property
    def tokens_per_sequence(self) -> float:
        """Average number of tokens committed per sequence and step; 0.0 before the first step."""
        return self.tokens / self.sequences if self.sequences else 0.0

    @property
    def speed_up(self) -> float:
        """Estimated speed over plain decoding; 1.0 before the first step."""
        return self.plain_seconds / self.seconds if self.seconds > 0 else 1.0
