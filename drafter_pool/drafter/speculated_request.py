"""A running request, as far as drafters are concerned: each verifier has requests of its own kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from service_runtime.observability.span import Span
from speculative_engine.acceptance.acceptance import Acceptance
from speculative_engine.sampling.sampling_params import SamplingParams


class SpeculationOrder(Protocol):
    """What stays the same while a request runs."""

    @property
    def request_id(self) -> str:
        """Its name in logs."""

    @property
    def sampling(self) -> SamplingParams:
        """How its tokens are drawn."""

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and output together."""

    @property
    def speculate(self) -> bool:
        """Whether anybody drafts for it."""

    @property
    def drafter_names(self) -> Sequence[str]:
        """The only drafters it takes, all of them; empty leaves the choice to the pool."""

    @property
    def labels(self) -> Mapping[str, str]:
        """What its drafters have to carry."""

    @property
    def drafters(self) -> int | None:
        """How many drafters draft for it at once; None leaves it to the setting."""

    @property
    def acceptance(self) -> Acceptance:
        """The rule by which its tokens are accepted."""

    @property
    def dynamic_temperature(self) -> bool:
        """Whether drafters draft the cooler the less sure they are."""


class SpeculatedRequest(Protocol):
    """A request that runs."""

    @property
    def sequence_id(self) -> int:
        """Its number in this process, never used again."""

    @property
    def order(self) -> SpeculationOrder:
        """What was asked for."""

    @property
    def span(self) -> Span:
        """Where traces tell of it."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and output committed so far, in step with the verdicts sent to drafters."""

    @property
    def finished(self) -> bool:
        """Whether it needs no drafter any more."""
