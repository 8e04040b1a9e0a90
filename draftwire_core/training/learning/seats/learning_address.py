"""The address of a drafter inside the verifier that can learn: ``local:draft?model=PATH&...``, ``local:recurrent``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote

_PREFIX = "local:"
DRAFT, HEAD = "draft", "recurrent"
_MODEL, _WEIGHTS, _AS_READ = "model", "weights", "checkpoint"


@dataclass(frozen=True, slots=True)
class LearningAddress:
    """A drafter inside the verifier, with the options of its address."""

    method: str
    """DRAFT or HEAD."""
    options: dict[str, str]

    @classmethod
    def parse(cls, address: str) -> Self | None:
        """Returns the drafter of an address; None for one that cannot learn."""
        method, _, options_text = address.removeprefix(_PREFIX).partition("?")
        if not address.startswith(_PREFIX) or method not in (DRAFT, HEAD):
            return None
        options = dict(parse_qsl(options_text, keep_blank_values=True))
        return cls(method, options) if method == HEAD or _MODEL in options else None

    @property
    def model(self) -> str:
        """Directory, GGUF file or hub id of the model; empty for a head that knows nothing yet."""
        return self.options.get(_MODEL, "")

    @property
    def weights(self) -> str:
        """Type of the weights of linear layers."""
        return self.options.get(_WEIGHTS, _AS_READ)

    def of(self, model: str, weights: str = _AS_READ) -> LearningAddress:
        """Returns another model with the same options. weights: the type of a draft model's weights, unless the options
        say."""
        chosen = self.weights if self.weights != _AS_READ or self.method == HEAD else weights
        return LearningAddress(
            self.method,
            {name: value for name, value in self.options.items() if name != _WEIGHTS}
            | {_MODEL: model}
            | ({} if chosen == _AS_READ else {_WEIGHTS: chosen}),
        )

    @property
    def address(self) -> str:
        """The address."""
        options = "&".join(f"{name}={quote(value, safe='/')}" for name, value in self.options.items())
        return f"{_PREFIX}{self.method}{'?' * bool(options)}{options}"
