"""The choice of an acceptance rule: what a request asks for, and the rule object that serves it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Self

from draftwire_core.engine.acceptance.coupled import CoupledRule
from draftwire_core.engine.acceptance.lossy import ThresholdRule, TypicalRule
from draftwire_core.engine.acceptance.rejection import RejectionRule
from draftwire_core.engine.acceptance.rule import AcceptanceRule
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.sampling.philox import verifier_key
from draftwire_core.engine.sampling.sampling_params import SamplingParams


class RuleName(enum.Enum):
    """The names of the acceptance rules."""

    COUPLED = "coupled"
    REJECTION = "rejection"
    TYPICAL = "typical"
    THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance rule of a request, with its thresholds. Each rule reads only its own."""

    rule: RuleName = RuleName.COUPLED
    threshold: float = 0.5
    """threshold: the least probability under the target, in (0, 1]."""
    posterior_threshold: float = 0.09
    """typical: the upper bound of the required probability, in (0, 1]. Default as in Medusa."""
    posterior_alpha: float = 0.3
    """typical: the required probability is at most this times exp(-entropy), in (0, 1]. Default as in Medusa."""

    @property
    def lossless(self) -> bool:
        """Whether the output has exactly the target's distribution."""
        return self.rule in (RuleName.COUPLED, RuleName.REJECTION)

    @property
    def draws(self) -> bool:
        """Whether drafters must sample their tokens and report the distribution they sampled from."""
        return self.rule is RuleName.REJECTION

    def validate(self, prefix: str = "speculation") -> Self:
        """Returns self, or raises `FieldError` for the first threshold out of range, named ``<prefix>.<field>``."""
        for field in ("threshold", "posterior_threshold", "posterior_alpha"):
            value = getattr(self, field)
            if not 0 < value <= 1:  # NaN fails every comparison, so it is rejected too
                raise FieldError(f"{prefix}.{field}", f"must be in (0, 1], got {value}")
        return self


COUPLED = Acceptance()
"""The default: a draft token is kept where it equals the target's own token."""


def rule_of(acceptance: Acceptance, sampling: SamplingParams) -> AcceptanceRule:
    """Returns the rule that verifies a sequence.

    A greedy request always gets the coupled rule. Without noise the target's distribution is a single token, and every
    rule would keep exactly that token.

    sampling: the target's sampling parameters, from `sampling_of`.
    """
    if sampling.greedy or acceptance.rule is RuleName.COUPLED:
        return CoupledRule()
    if acceptance.rule is RuleName.REJECTION:
        return RejectionRule(sampling.seed)
    if acceptance.rule is RuleName.TYPICAL:
        return TypicalRule(acceptance.posterior_threshold, acceptance.posterior_alpha)
    return ThresholdRule(acceptance.threshold)


def sampling_of(acceptance: Acceptance, sampling: SamplingParams) -> SamplingParams:
    """Returns the sampling parameters with which the target draws for a request.

    Under the rejection rule their seed is a derived key, independent of every drafter's choices.
    """
    return replace(sampling, seed=verifier_key(sampling.seed)) if acceptance.draws else sampling
