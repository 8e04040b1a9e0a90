"""What the engine goes by for what a request asks."""

from __future__ import annotations

from dataclasses import replace

from speculative_engine.acceptance.acceptance import Acceptance, RuleName
from speculative_engine.acceptance.rejection import RejectionRule
from speculative_engine.acceptance.rule import Rule
from speculative_engine.acceptance.threshold import ThresholdRule
from speculative_engine.acceptance.typical import TypicalRule
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.sampling.uniforms import verifier_key


def rule_of(acceptance: Acceptance, sampling: SamplingParams) -> Rule | None:
    """The rule; None for the coupled one, which is only a comparison.

    That is what all of them are without noise: the target's distribution is then one token, so a draft token is kept
    exactly where it is that one.

    sampling: as the target draws; see `sampling_of`.
    """
    if sampling.greedy or acceptance.rule is RuleName.COUPLED:
        return None
    if acceptance.rule is RuleName.REJECTION:
        return RejectionRule(sampling.seed)
    if acceptance.rule is RuleName.TYPICAL:
        return TypicalRule(acceptance.posterior_threshold, acceptance.posterior_alpha)
    return ThresholdRule(acceptance.threshold)


def sampling_of(acceptance: Acceptance, sampling: SamplingParams) -> SamplingParams:
    """How the target draws for a request: under the rule of rejection by a key that no drafter's choice depends on."""
    return replace(sampling, seed=verifier_key(sampling.seed)) if acceptance.draws else sampling
