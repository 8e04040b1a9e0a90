"""The changes to the logits that a request asks for. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from draftwire_core.engine.errors import FieldError

MOST_PENALTY = 2.0
MOST_BIAS = 100.0
MOST_BIASES = 1024


@dataclass(frozen=True, slots=True)
class LogitChanges:
    """A request's changes to the logits, in the order in which they apply; see `editors_of`."""

    repetition_penalty: float = 1.0
    """Divisor of positive logits, and factor of others, of tokens in prompt or output. Finite and above 0."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the output, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each occurrence in the output, in [-2, 2]."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of tokens, in [-100, 100]; at most 1024 tokens."""
    allowed_token_ids: Sequence[int] = ()
    """The only tokens that may be drawn; empty allows all."""
    banned_token_ids: Sequence[int] = ()
    """Tokens that are never drawn."""
    bad_words: Sequence[Sequence[int]] = ()
    """Sequences of tokens that must not occur in the output."""
    min_tokens: int = 0
    """Fewest output tokens; before that, no token that ends the output is drawn."""

    @property
    def banning(self) -> str:
        """The name of a field that bans tokens: of words, if there are any."""
        return "bad_words" if self.bad_words else "banned_token_ids"

    @property
    def banned(self) -> list[list[int]]:
        """All sequences of tokens that must not occur in the output, those of a single token included."""
        return [*([token] for token in self.banned_token_ids), *map(list, self.bad_words)]

    @property
    def allows_nothing(self) -> bool:
        """Whether every allowed token is banned."""
        return bool(self.allowed_token_ids) and set(self.allowed_token_ids) <= set(self.banned_token_ids)

    def validate(self, prefix: str = "sampling") -> Self:
        """Returns self; raises `FieldError` for the first number out of range, named ``<prefix>.<field>``."""
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise FieldError(
                f"{prefix}.repetition_penalty", f"must be finite and above 0, got {self.repetition_penalty}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -MOST_PENALTY <= value <= MOST_PENALTY:  # also true of NaN, which fails every comparison
                raise FieldError(f"{prefix}.{name}", f"must be in [-{MOST_PENALTY:g}, {MOST_PENALTY:g}], got {value}")
        if len(self.logit_bias) > MOST_BIASES:
            raise FieldError(
                f"{prefix}.logit_bias", f"has {len(self.logit_bias)} tokens, at most {MOST_BIASES} are allowed"
            )
        for token, bias in self.logit_bias.items():
            if not -MOST_BIAS <= bias <= MOST_BIAS:
                raise FieldError(
                    f"{prefix}.logit_bias[{token}]", f"must be in [-{MOST_BIAS:g}, {MOST_BIAS:g}], got {bias}"
                )
        return self


NO_CHANGES = LogitChanges()
"""The default: tokens are drawn from the target's own logits."""
