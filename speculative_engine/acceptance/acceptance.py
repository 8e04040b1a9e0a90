"""The choice of a rule of acceptance: what a request asks for, and the rule object that it gets."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Self

from speculative_engine.acceptance.coupled import CoupledRule
from speculative_engine.acceptance.lossy import ThresholdRule, TypicalRule
from speculative_engine.acceptance.rejection import RejectionRule
from speculative_engine.acceptance.rule import AcceptanceRule
from speculative_engine.field_error import FieldError
from speculative_engine.sampling.philox import verifier_key
from speculative_engine.sampling.sampling_params import SamplingParams


class RuleName(enum.Enum):
    """The rules of acceptance."""

    COUPLED = "coupled"
    REJECTION = "rejection"
    TYPICAL = "typical"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The rule that a request asks for, with its thresholds; each rule reads its own."""

    rule: RuleName = RuleName.COUPLED
    threshold: float = 0.5
    """threshold: the least probability under the target, in (0, 1]."""
    posterior_threshold: float = 0.09
    """typical: the most that is asked of a token's probability, in (0, 1]. Default as in Medusa."""
    posterior_alpha: float = 0.3
    """typical: what is asked of it is at most this times exp(-entropy), in (0, 1]. Default as in Medusa."""

    @property
    def lossless(self) -> bool:
        """Whether the output is distributed as the target's alone."""
        return self.rule in (RuleName.COUPLED, RuleName.REJECTION)

    @property
    def draws(self) -> bool:
        """Whether drafters have to draw their tokens and name the distribution that they drew from."""
        return self.rule is RuleName.REJECTION

    def validate(self, prefix: str = "speculation") -> Self:
        """Return self, or raise `FieldError` for the first threshold out of range, named ``<prefix>.<field>``."""
        for field in ("threshold", "posterior_threshold", "posterior_alpha"):
            value = getattr(self, field)
            if not 0 < value <= 1:  # NaN fails every comparison, so it lands here too
                raise FieldError(f"{prefix}.{field}", f"must be in (0, 1], got {value}")
        return self


COUPLED = Acceptance()
"""The default: a draft token is kept where it is the target's own."""


def rule_of(acceptance: Acceptance, sampling: SamplingParams) -> AcceptanceRule:
    """Returns the rule that a sequence is verified by.

    Without noise all rules are the coupled one: the target's distribution is then one token, so a draft token is kept
    exactly where it is that token.

    sampling: as the target draws; see `sampling_of`.
    """
    if sampling.greedy or acceptance.rule is RuleName.COUPLED:
        return CoupledRule()
    if acceptance.rule is RuleName.REJECTION:
        return RejectionRule(sampling.seed)
    if acceptance.rule is RuleName.TYPICAL:
        return TypicalRule(acceptance.posterior_threshold, acceptance.posterior_alpha)
    return ThresholdRule(acceptance.threshold)


def sampling_of(acceptance: Acceptance, sampling: SamplingParams) -> SamplingParams:
    """Returns how the target draws for a request: under the rule of rejection by a key that no drafter's choice
    depends on."""
    return replace(sampling, seed=verifier_key(sampling.seed)) if acceptance.draws else sampling
