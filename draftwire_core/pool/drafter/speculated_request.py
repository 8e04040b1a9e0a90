"""Protocols of a running request as drafters need it. Each verifier has its own request class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from draftwire_core.engine.acceptance.acceptance import Acceptance
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.runtime.observability.span import Span


class SpeculationOrder(Protocol):
    """The fixed part of a request."""

    @property
    def request_id(self) -> str:
        """The request's id in logs."""

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters of the request."""

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of prompt and output together."""

    @property
    def speculate(self) -> bool:
        """Whether drafters may draft for the request."""

    @property
    def drafter_names(self) -> Sequence[str]:
        """Names of the drafters that draft for the request, and no others; empty leaves the choice to the pool."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that the request's drafters must have."""

    @property
    def drafters(self) -> int | None:
        """Number of drafters that draft for the request at once; None for the pool's setting."""

    @property
    def acceptance(self) -> Acceptance:
        """The request's acceptance rule."""

    @property
    def always_draft(self) -> bool:
        """Whether drafters draft for the request even while they are paused."""

    @property
    def dynamic_temperature(self) -> bool:
        """Whether drafters lower their temperature where they are less confident."""


class SpeculatedRequest(Protocol):
    """A running request."""

    @property
    def sequence_id(self) -> int:
        """The sequence's number, unique in this process."""

    @property
    def order(self) -> SpeculationOrder:
        """The fixed part of the request."""

    @property
    def span(self) -> Span:
        """The request's trace span; NO_SPAN if it is not traced."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and the output committed so far, consistent with the verdicts sent to drafters."""

    @property
    def finished(self) -> bool:
        """Whether the request no longer needs a drafter."""
