"""Outputs of a verifier compared with its plain ones, which are asked for once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from draftwire import AsyncClient, Speculation, SpeculationStats
from draftwire_tools.check.case import Case
from draftwire_tools.check.comparison import Around, Comparison, Run, generate
from draftwire_tools.check.drafters import PLAIN, changing
from draftwire_tools.check.output import Output
from draftwire_tools.check.prompts import CheckPrompt
from draftwire_tools.check.request import CheckRequest, check_requests
from tests.harness.suite.engines import ON_VLLM
from tests.harness.waiting import LONG_PATIENCE, sometimes

Way = Callable[[AsyncClient], Run]
"""How a client runs requests."""
Grouped = Callable[[AsyncClient], Around]
"""How a client runs groups of requests."""


MOST_GAP = 1e-3
"""Most distance of log-probabilities whose bits the engine does not promise."""
FORCED = Speculation(planning="always")
"""Whatever a row costs."""
EACH_WAY = {"greedy": {"temperature": 0.0, "ignore_eos": True}, "sampled": {"temperature": 0.9, "ignore_eos": True}}


def speculating(speculation: Speculation | None = None) -> Way:
    """Returns the way with these options of speculation."""
    return lambda client: partial(generate, client, speculation=speculation or Speculation())


class Compared:
    """Requests of one verifier: each prompt under each sampling, with the prompt's number as its seed."""

    def __init__(
        self,
        address: str,
        prompts: Sequence[str],
        samplings: Mapping[str, Mapping[str, Any]],
        tokens: int,
        seed: int = 0,
    ) -> None:
        """address: of the verifier."""
        self._address = address
        requests = check_requests([CheckPrompt("test", text) for text in prompts], tokens, seed, samplings)
        self._requests = requests
        self._samplings, self._count = list(samplings), len(prompts)
        self._comparison = Comparison(requests, bits=not ON_VLLM)

    def __call__(
        self, way: Way | None, sampling: str, count: int = 1, *, batch: int = 1, grouped: Grouped | None = None
    ) -> Case:
        """Runs the first requests under a sampling in a way, and asserts that each has its plain output."""
        return asyncio.run(self._compare(way, sampling, count, batch, grouped))

    def drafting(self, speculation: Speculation = FORCED) -> None:
        """Runs all requests with drafts until some of these are accepted."""

        def accepted() -> int:
            way = speculating(speculation)
            return sum(
                self(way, sampling, self._count, batch=self._count).accepted_tokens for sampling in self._samplings
            )

        sometimes(accepted, "drafts are accepted")

    def swapping(self, sampling: str, *addresses: str, count: int = 1) -> None:
        """Runs requests one by one, during each of which drafters take turns, every five tokens, until one takes over
        from another in each of them."""
        events: list[int] = []

        def swapping(client: AsyncClient) -> Run:
            async def run(request: CheckRequest) -> tuple[Output, SpeculationStats]:
                async with changing(client, addresses) as pool:
                    found = await pool.swapping(request)
                    events.append(pool.events)
                    return found

            return run

        def moved() -> bool:
            self(swapping, sampling, count)
            return all(events[-count:])

        sometimes(moved, "each request moves")

    def plain(self, sampling: str, count: int = 1) -> list[Output]:
        """Returns the plain outputs of the first requests under a sampling."""
        asyncio.run(self._compare(None, sampling, count, 1, None))
        return [self._comparison.plain(each) for each in self._requests if _among(sampling, count, each)]

    async def _compare(self, way: Way | None, sampling: str, count: int, batch: int, grouped: Grouped | None) -> Case:
        only = partial(_among, sampling, count)
        async with AsyncClient(self._address, timeout=LONG_PATIENCE) as client:
            await self._comparison.run_plain(partial(generate, client, speculation=PLAIN, prefix_cache=False), only)
            run, around = way and way(client), grouped and grouped(client)
            case = await self._comparison.compare(sampling, run, around=around, batch=batch, only=only)
        assert case.differences == []
        assert max(self._comparison.gaps, default=0.0) < MOST_GAP
        assert case.compared == (count if way or grouped else 0)
        assert not case.sum("resumes")
        return case


def _among(sampling: str, count: int, request: CheckRequest) -> bool:
    return request.sampling == sampling and request.number < count
