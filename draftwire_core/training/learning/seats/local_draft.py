"""The address of a draft model inside the verifier, ``local:draft?model=PATH&...``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote

_PREFIX = "local:draft?"
_MODEL, _WEIGHTS, _AS_READ = "model", "weights", "checkpoint"


@dataclass(frozen=True, slots=True)
class LocalDraft:
    """A draft model inside the verifier, with the options of its address."""

    options: dict[str, str]

    @classmethod
    def parse(cls, address: str) -> Self | None:
        """Returns the draft model of a drafter's address; None for a drafter of another kind."""
        if not address.startswith(_PREFIX):
            return None
        options = dict(parse_qsl(address.removeprefix(_PREFIX), keep_blank_values=True))
        return cls(options) if _MODEL in options else None

    @property
    def model(self) -> str:
        """Directory, GGUF file or hub id of the model."""
        return self.options[_MODEL]

    @property
    def weights(self) -> str:
        """Type of the weights of linear layers."""
        return self.options.get(_WEIGHTS, _AS_READ)

    def of(self, model: str, weights: str = _AS_READ) -> LocalDraft:
        """Returns another model with the same options. weights: the type of its weights, unless the options say."""
        chosen = self.weights if self.weights != _AS_READ else weights
        return LocalDraft(
            {name: value for name, value in self.options.items() if name != _WEIGHTS}
            | {_MODEL: model}
            | ({} if chosen == _AS_READ else {_WEIGHTS: chosen})
        )

    @property
    def address(self) -> str:
        """The address."""
        return _PREFIX + "&".join(f"{name}={quote(value, safe='/')}" for name, value in self.options.items())
