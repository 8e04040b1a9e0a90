"""A running request as drafters need it. Each verifier has its own class of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from service_runtime.observability.span import Span
from speculative_engine.acceptance.acceptance import Acceptance
from speculative_engine.sampling.sampling_params import SamplingParams


class SpeculationOrder(Protocol):
    """The part of a request that stays the same while it runs."""

    @property
    def request_id(self) -> str:
        """Its name in logs."""

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters of the request."""

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and output together."""

    @property
    def speculate(self) -> bool:
        """Whether drafters may draft for the request."""

    @property
    def drafter_names(self) -> Sequence[str]:
        """The only drafters it takes, all of them; empty leaves the choice to the pool."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that its drafters must have."""

    @property
    def drafters(self) -> int | None:
        """Number of drafters that draft for the request at once; None leaves it to the setting."""

    @property
    def acceptance(self) -> Acceptance:
        """The rule by which its tokens are accepted."""

    @property
    def dynamic_temperature(self) -> bool:
        """Whether drafters lower their temperature where they are less sure."""


class SpeculatedRequest(Protocol):
    """A request that runs."""

    @property
    def sequence_id(self) -> int:
        """Its number in this process, never used again."""

    @property
    def order(self) -> SpeculationOrder:
        """The request as it was asked for."""

    @property
    def span(self) -> Span:
        """The request's span in traces; NO_SPAN where it is not traced."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and output committed so far, in step with the verdicts sent to drafters."""

    @property
    def finished(self) -> bool:
        """Whether the request no longer needs a drafter."""
