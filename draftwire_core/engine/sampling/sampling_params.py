"""The sampling parameters of a request. Pure Python, so that settings, services and tests can use it without torch."""

import math
from dataclasses import dataclass, fields
from typing import Protocol, Self

from draftwire_core.engine.errors import FieldError

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: logits 1e-4 apart are then 10 units of noise apart, and float32
scores of size z/T no longer resolve the noise."""


class SamplingMessage(Protocol):
    """The protobuf message `draftwire.v1.SamplingParams`, whose fields have the names of `SamplingParams`."""

    def HasField(self, field_name: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters that determine, with the prompt and the target's weights, every token of a request.

    The filters apply in the order temperature, top_k, top_p, min_p, typical_p; see
    `draftwire_core.engine.sampling.token_filters` and `draftwire_core.engine.sampling.kept_range`.
    """

    temperature: float = 1.0
    """Softmax temperature, finite and >= 0. 0 (and anything below `GREEDY_BELOW`) is greedy: no noise, no filters."""
    top_k: int = 0
    """Keeps the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keeps the smallest set of most likely tokens whose probability reaches top_p, in (0, 1]."""
    min_p: float = 0.0
    """Keeps tokens with at least min_p times the probability of the most likely one, in [0, 1]."""
    typical_p: float = 1.0
    """Keeps tokens whose surprise is closest to the entropy until their probability reaches typical_p, in (0, 1]."""
    seed: int = 0
    """Key of the noise, an unsigned 64-bit integer."""

    @classmethod
    def read(cls, message: SamplingMessage, seed: int) -> Self:
        """The parameters of a protobuf message, with the contract's defaults for unset fields; not yet validated."""
        given = {each.name for each in fields(cls) if message.HasField(each.name)} - {"seed"}
        return cls(**{name: getattr(message, name) for name in given}, seed=seed)

    @property
    def greedy(self) -> bool:
        """Whether the token is the plain argmax of the logits."""
        return self.temperature < GREEDY_BELOW

    def validate(self, prefix: str = "sampling") -> Self:
        """Returns self; raises `FieldError` for the first field out of range, named ``<prefix>.<field>``."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise FieldError(f"{prefix}.temperature", f"must be finite and >= 0, got {self.temperature}")
        if self.top_k < 0:
            raise FieldError(f"{prefix}.top_k", f"must be >= 0 (0 keeps all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:  # also true of NaN, which fails every comparison
            raise FieldError(f"{prefix}.top_p", f"must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise FieldError(f"{prefix}.min_p", f"must be in [0, 1], got {self.min_p}")
        if not 0 < self.typical_p <= 1:
            raise FieldError(f"{prefix}.typical_p", f"must be in (0, 1], got {self.typical_p}")
        if not 0 <= self.seed < 1 << 64:
            raise FieldError(f"{prefix}.seed", f"must be an unsigned 64-bit integer, got {self.seed}")
        return self
