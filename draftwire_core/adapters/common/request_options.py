"""Options of a draftwire request that travel in one of the host engine, which has no fields for them itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter

from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.sampling.sampling_params import SamplingParams

KEY = "draftwire"
"""Name of the options among the host engine's own additional arguments."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options, written by a verifier in front of the host engine, and read by the adapter inside it."""

    speculate: bool = True
    """Whether any drafter drafts for the request."""
    drafter_names: tuple[str, ...] = ()
    """The only drafters for the request; if empty, the pool chooses."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that its drafters must carry."""
    drafters: int | None = None
    """Number of drafters that draft at once; None uses the pool's setting."""
    always_draft: bool = False
    """Whether its draft tokens are verified whatever they are worth."""
    filters: Mapping[str, int | float] = field(default_factory=dict)
    """Values of SamplingParams, by name, that the host engine has not, or refuses with speculation."""

    def extra_args(self) -> dict[str, Any] | None:
        """Returns the additional arguments of the host engine's request; None if all options have their defaults."""
        usual = asdict(RequestOptions())
        given = {name: value for name, value in asdict(self).items() if value != usual[name]}
        return {KEY: given} if given else None

    @classmethod
    def of(cls, params: Any) -> RequestOptions:
        """Returns the options in a host engine's sampling parameters, the defaults for a request of another client."""
        given = (getattr(params, "extra_args", None) or {}).get(KEY)
        if not isinstance(given, dict):
            return cls()
        try:
            options = _OPTIONS.validate_python(given)
            _SAMPLING.validate_python(options.filters).validate()
        except (ValueError, FieldError):  # any client can write some, which must not end the host engine
            return cls()
        return options if options.filters.keys() <= _FILTERS else cls()


_OPTIONS = TypeAdapter(RequestOptions)
_SAMPLING = TypeAdapter(SamplingParams)
_FILTERS = {each.name for each in fields(SamplingParams)} - {"temperature", "top_k", "top_p"}
