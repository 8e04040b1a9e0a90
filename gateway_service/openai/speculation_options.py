"""The speculation options of a request: ``"speculation": {...}`` in its body."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from draftwire import Speculation
from draftwire._types.option import options_of
from gateway_service.http.errors import GatewayError
from gateway_service.openai.fields.checks import at_most, members_at_most, one_of
from gateway_service.openai.fields.content import Content
from gateway_service.openai.fields.declared import SpeculationFields
from gateway_service.openai.fields.whole_numbers import TokenIds, Whole

_UINT32_END = 1 << 32
_MOST_NAMES = 64
"""Most drafters, and most labels, that a request may name."""


class SpeculationOptions(SpeculationFields):
    """The options of `draftwire.Speculation`. With coupled acceptance, the default, none of them changes a token of the
    output."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    drafters: Annotated[
        Annotated[int, Field(ge=1, lt=_UINT32_END), Whole] | Annotated[list[str], at_most(_MOST_NAMES)] | None,
        one_of("a number of at least 1, or a list of names"),
    ] = None
    """Number of drafters that draft at once, or the names of those to use."""
    labels: Annotated[dict[str, str], members_at_most(_MOST_NAMES)] | None = None
    """Draft only with drafters that carry all these labels."""
    prediction: Annotated[str | TokenIds | None, one_of("a string or a list of token ids")] = None
    """The expected output, as text or token ids; an alternative to the request's own `prediction`."""
    report_sources: bool = False
    """Report in streamed chunks which drafter drafted each token."""

    def to_sdk(self, prediction: str | None) -> Speculation:
        """Returns the SDK's options. prediction: the request's own prediction, outside of these options.

        Raises:
            GatewayError: there are two predictions.
        """
        if prediction is not None and self.prediction is not None:
            raise GatewayError(
                "speculation.prediction: cannot be combined with prediction", param="speculation.prediction"
            )
        given = {name: getattr(self, name) for name in options_of(Speculation)}
        if prediction is not None:
            given["prediction"] = prediction
        return Speculation(**{name: value for name, value in given.items() if value is not None})


class PredictedOutput(BaseModel):
    """The expected output."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["content"]
    content: Content
