"""Tests of sampled tokens against the target's own distribution."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from draftwire._async.client import AsyncClient
from draftwire._types.generation import Generation
from draftwire._types.options import GenerateOptions
from draftwire._types.speculation import Speculation
from draftwire.errors import AtCapacityError
from draftwire_tools.check.chi_square import chi_square, tail
from draftwire_tools.check.prompts import CheckPrompt

FALSE_ALARM = 1e-6
"""Probability that a faultless verifier fails any of a check's tests of distributions."""
_TOKENS = 8
"""Tokens of a request."""
_TOP = 20
"""Likeliest tokens that are told apart."""
_TEMPERATURE = 0.8
"""Temperature of the test with top-k, which knows all probabilities at any temperature."""
_CONCURRENT = 8

WHOLE, TOP_K = "T=1", f"T={_TEMPERATURE:g}, top-k {_TOP}"


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """A test of sampled tokens."""

    name: str
    """The drafter and the sampling."""
    tokens: int
    """Tokens drawn, of which each had a distribution of its own."""
    seeds: int
    """Requests, each with a seed of its own."""
    statistic: float
    """The chi-square statistic."""
    degrees: int
    """The test's degrees of freedom."""
    p_value: float
    """Probability that it is as large or larger if the tokens are drawn from the target's distribution."""
    least: float
    """The p-value below which the test fails."""
    impossible: int
    """Drawn tokens to which the target gives no probability."""

    @property
    def passed(self) -> bool:
        """Whether the tokens may come from the target's distribution."""
        return not self.impossible and self.p_value >= self.least

    def to_json(self) -> dict[str, Any]:
        """Returns the test as a JSON value."""
        return {**asdict(self), "passed": self.passed}


async def run_distribution_tests(
    client: AsyncClient,
    prompt: CheckPrompt,
    ways: Sequence[tuple[str, Speculation]],
    seeds: int,
    over: Callable[[], bool],
) -> list[DistributionTest]:
    """Samples a prompt's continuations under many seeds, and tests the tokens by their rank among the likeliest.

    Args:
        client: client of the verifier.
        prompt: the prompt to continue.
        ways: names and options of speculation, each tested by itself.
        seeds: requests per test.
        over: whether the time is over; the rest of the seeds is left out then.

    Raises:
        DraftwireError: a request failed.
    """
    samplings: dict[str, GenerateOptions] = {
        WHOLE: {"temperature": 1.0},
        TOP_K: {"temperature": _TEMPERATURE, "top_k": _TOP},
    }
    least = FALSE_ALARM / (len(ways) * len(samplings))

    async def draw(**asked: Unpack[GenerateOptions]) -> list[Generation]:
        try:
            return [await client.generate(prompt.text, **asked)]
        except AtCapacityError:  # the tests need no certain seed
            return []

    tests: list[DistributionTest] = []
    for way, speculation in ways:
        for sampling, options in samplings.items():
            generations: list[Generation] = []
            for first in range(0, seeds, _CONCURRENT):
                if first and over():
                    break
                seeds_now = range(first, min(first + _CONCURRENT, seeds))
                drawn = await asyncio.gather(*(draw(**_options(options, speculation, seed)) for seed in seeds_now))
                generations += [each for found in drawn for each in found]
            tests.append(_test(f"{way}, {sampling}", generations, sampling, least))
    return tests


def _options(sampling: GenerateOptions, speculation: Speculation, seed: int) -> GenerateOptions:
    return {
        **sampling,
        "seed": seed,
        "max_tokens": _TOKENS,
        "ignore_eos": True,
        "logprobs": _TOP,
        "speculation": speculation,
    }


def _test(name: str, generations: Sequence[Generation], sampling: str, least: float) -> DistributionTest:
    draws: list[tuple[int, list[float]]] = []
    impossible = 0
    for generation in generations:
        for each in generation.logprobs:
            ids = [top.token_id for top in each.top]
            rank = ids.index(each.token.token_id) if each.token.token_id in ids else len(ids)
            if sampling == WHOLE:
                likely = [math.exp(top.logprob) for top in each.top]
                probabilities = [*likely, max(0.0, 1 - sum(likely))]
            else:
                weights = [math.exp(top.logprob / _TEMPERATURE) for top in each.top]
                probabilities = [*(weight / sum(weights) for weight in weights), 0.0]
            if rank == len(ids) and sampling != WHOLE:
                impossible += 1
            else:
                draws.append((rank, probabilities))
    statistic, degrees = chi_square(draws)
    p_value = tail(statistic, degrees)
    return DistributionTest(name, len(draws), len(generations), statistic, degrees, p_value, least, impossible)
