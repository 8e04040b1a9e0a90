"""The speculation options of a request: ``"speculation": {...}`` in its body."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from draftwire import Acceptance, Planning, Preset, Speculation
from gateway_service.http.errors import GatewayError
from gateway_service.openai.fields.alternatives import one_of
from gateway_service.openai.fields.bounds import at_most, members_at_most
from gateway_service.openai.fields.content import Content
from gateway_service.openai.fields.token_ids import TokenIds

_UINT32_END = 1 << 32
_MOST_NAMES = 64
"""Most drafters, and most labels, that a request may name."""


class SpeculationOptions(BaseModel):
    """Options of speculation. With coupled acceptance, the default, none of them changes a token of the output."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    enabled: bool = True
    """False decodes without speculation."""
    drafter: str | None = None
    """Name of the attached drafter to use."""
    drafters: Annotated[
        Annotated[int, Field(ge=1, lt=_UINT32_END)] | Annotated[list[str], at_most(_MOST_NAMES)] | None,
        one_of("a number of at least 1, or a list of names"),
    ] = None
    """Number of drafters that draft at once, or the names of those to use."""
    labels: Annotated[dict[str, str], members_at_most(_MOST_NAMES)] | None = None
    """Draft only with drafters that carry all these labels."""
    max_draft_tokens: Annotated[int, Field(ge=0, lt=_UINT32_END)] | None = None
    """Most draft tokens verified in one step."""
    planning: Planning | None = None
    """Draft tokens to verify: `auto`, those that pay, or `always`, all that arrive."""
    acceptance: Acceptance | None = None
    """Rule by which draft tokens are accepted."""
    preset: Preset | None = None
    """Kind of content that sets the threshold, for the rule `threshold`."""
    threshold: float | None = None
    """Least probability under the target, for the rule `threshold`."""
    posterior_threshold: float | None = None
    """Upper bound of the acceptance threshold, for the rule `typical`."""
    posterior_alpha: float | None = None
    """Factor of exp(-entropy) in the acceptance threshold, for the rule `typical`."""
    dynamic_temperature: bool = False
    """Let drafters lower their temperature where they are unsure; not for `coupled`."""
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
        return Speculation(
            enabled=self.enabled,
            drafter=self.drafter,
            max_draft_tokens=self.max_draft_tokens,
            planning=self.planning,
            acceptance=self.acceptance,
            preset=self.preset,
            labels=self.labels,
            drafters=self.drafters,
            prediction=self.prediction if prediction is None else prediction,
            threshold=self.threshold,
            posterior_threshold=self.posterior_threshold,
            posterior_alpha=self.posterior_alpha,
            dynamic_temperature=self.dynamic_temperature,
        )


class PredictedOutput(BaseModel):
    """The expected output."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["content"]
    content: Content
