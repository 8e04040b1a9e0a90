"""The options of drafters in the verifier whose networks come in checkpoints of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from draftwire_core.engine.field_error import FieldError


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Options that all such drafters have."""

    kind: ClassVar[str]
    """Kind of checkpoint, as error messages name it."""
    model: str = ""
    """Directory or hub id of a checkpoint for the target; required."""
    window: int = 0
    """Last tokens of a text that it reads when it begins; 0 for all."""

    def __post_init__(self) -> None:
        if self.window < 0:
            raise FieldError("window", f"must be at least 0, got {self.window}")
        if not self.model:
            raise FieldError("model", f"must be given: the directory or hub id of {self.kind} checkpoint")
