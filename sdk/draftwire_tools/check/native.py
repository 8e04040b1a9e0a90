"""The check of a verifier, by the SDK's own protocol."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire._types.model import VerifierInfo
from draftwire._types.speculation import Speculation, SpeculationStats
from draftwire.errors import DraftwireError
from draftwire_tools.bench.machine import machine
from draftwire_tools.check.case import Budget
from draftwire_tools.check.comparison import Comparison, Run, generate, resume
from draftwire_tools.check.distribution import DistributionTest, run_distribution_tests
from draftwire_tools.check.drafters import EVERY, NOBODY, PLAIN, changing, drafters, drafting
from draftwire_tools.check.other_verifiers import Variant, compare_variants, variants
from draftwire_tools.check.output import Output
from draftwire_tools.check.prompts import CheckPrompt, speed_prompts
from draftwire_tools.check.report.certificate import Certificate
from draftwire_tools.check.request import CheckRequest, check_requests
from draftwire_tools.check.speed import Speed, measure_speed
from draftwire_tools.progress import Stage

BATCH = 16
"""Requests at once."""
_FIXED_CASES = 15
"""Parts of the time besides the drafters and other verifiers: plain decoding, `compare_ways`, tests, speed."""
_TEST_PARTS, _SPEED_PARTS = 4, 3
"""Parts of the time for the tests of distributions, and for the speed."""


@dataclass(frozen=True, slots=True)
class NativeCheck:
    """The settings of a check."""

    prompts: Sequence[CheckPrompt]
    """One for each request of a case and sampling."""
    max_tokens: int
    """Most tokens of a request."""
    seed: int
    """Seed of the first request."""
    seeds: int
    """Requests of each test of distributions; 0 for none."""
    minutes: float
    """The time of the whole check."""
    drafters: Sequence[str]
    """Names or addresses of the drafters; empty for all that are attached."""
    target: Path | None = None
    """The target's directory or file, if further verifiers may be started from it."""
    command: str = "draftwire check"
    """The command line that repeats the check."""

    async def run(self, client: AsyncClient, progress: Stage) -> Certificate:
        """Runs the check.

        progress: called with the name of each part as it begins, and the share of all parts that are done.

        Raises:
            ValueError: a drafter is unknown.
            Failure: a drafter could not be attached.
            DraftwireError: the verifier cannot be reached, or plain decoding fails.
        """
        info = await client.model_info()
        lengths = await self._lengths(client, info)
        prompts = [prompt for prompt in self.prompts if prompt.text in lengths]
        requests = check_requests(prompts, self.max_tokens, self.seed)
        async with drafters(client, self.drafters) as found:
            further = variants(info, lengths, self.max_tokens) if self.target is not None else []
            parts = _FIXED_CASES + len(found) + 2 * len(further)  # verifiers take time to start
            budget = Budget(60 * self.minutes, parts)
            refused = info.capabilities.refused if info.capabilities is not None else []
            comparison = Comparison(requests, budget, progress, refused=refused, bits=info.bit_exact)
            await comparison.run_plain(partial(generate, client, speculation=PLAIN, prefix_cache=False))
            await compare_ways(client, comparison, found)
            progress("distributions", budget.done)
            ways = sampled_ways(found, rejection="speculation.acceptance" not in refused)
            tests = await self._distributions(client, prompts[0], ways, budget.begin(_TEST_PARTS))
            progress("speed", budget.done)
            speed = await self._speed(client, requests, found, budget.take(_SPEED_PARTS), comparison.token_seconds)
            if self.target is not None:
                await compare_variants(comparison, self.target, info, found, further, lengths)
            return Certificate(
                f"{info.model_id} at {client.address}",
                self._about(info, found),
                comparison.cases,
                tests,
                speed,
                _notes(info, comparison, further),
                [self.command],
            )

    async def _distributions(
        self,
        client: AsyncClient,
        prompt: CheckPrompt,
        ways: Sequence[tuple[str, Speculation]],
        over: Callable[[], bool],
    ) -> list[DistributionTest]:
        return await run_distribution_tests(client, prompt, ways, self.seeds, over) if self.seeds else []

    async def _speed(
        self,
        client: AsyncClient,
        requests: Sequence[CheckRequest],
        found: Sequence[Drafter],
        seconds: float,
        token_seconds: float,
    ) -> Speed | None:
        kinds = speed_prompts([request.prompt for request in requests])
        return await measure_speed(client, kinds, found, self.max_tokens, seconds, token_seconds)

    async def _lengths(self, client: AsyncClient, info: VerifierInfo) -> dict[str, int]:
        """Returns the tokens of each prompt that leaves room for the output in the target's context.

        Raises:
            ValueError: no prompt does.
        """
        limits = [limit for limit in (info.context_length, info.limits.max_sequence_tokens) if limit]
        most = min(limits, default=sys.maxsize) - self.max_tokens
        lengths = {prompt.text: len(await client.tokenize(prompt.text)) for prompt in dict.fromkeys(self.prompts)}
        fitting = {text: length for text, length in lengths.items() if length <= most}
        if not fitting:
            raise ValueError(f"--prompts: no prompt leaves room for {self.max_tokens} tokens in the target's context")
        return fitting

    def _about(self, info: VerifierInfo, found: Sequence[Drafter]) -> dict[str, str]:
        return machine() | {
            "target": f"{info.model_id} ({info.parameters / 1e6:.3g} M, {info.dtype}, {info.device})",
            "verifier": info.build,
            "kernels": info.kernels or "not reported",
            "model fingerprint": info.fingerprint or "not reported",
            "numerics": f"{info.numerics} ({info.numerics_description})" if info.numerics else "not reported",
            "bit-exact by its self-test": "yes" if info.bit_exact else "no",
            "drafters": ", ".join(f"{each.name} ({each.address})" for each in found),
            "requests": f"{len(self.prompts)} per sampling and case, up to {self.max_tokens} tokens, "
            f"seeds from {self.seed}",
            "seeds per test of distributions": str(self.seeds),
        }


def sampled_ways(found: Sequence[Drafter], *, rejection: bool = True) -> list[tuple[str, Speculation]]:
    """Returns the ways whose sampled tokens are tested, by name. Drafters that translate are left out of the rule of
    rejection: they draw from other tokens than they propose, so they report no distributions, which it needs.
    rejection: whether the verifier has this rule."""
    ways = [("plain", PLAIN), ("all drafters", drafting([drafter.name for drafter in found]))]
    trusted = [
        drafter.name
        for drafter in found
        if drafter.trusted and not (drafter.model is not None and drafter.model.draft_tokenizer_sha256)
    ]
    if trusted and rejection:
        by_ratio = Speculation(drafters=trusted, planning="always", acceptance="rejection")
        ways.append(("all trusted drafters, rule of rejection", by_ratio))
    return ways


async def compare_ways(client: AsyncClient, comparison: Comparison, found: Sequence[Drafter]) -> None:
    """Compares all ways to run requests at one verifier with these drafters."""

    def drafted(speculation: Speculation, *, prefix_cache: bool = True) -> Run:
        return partial(generate, client, speculation=speculation, prefix_cache=prefix_cache)

    names = [drafter.name for drafter in found]
    together = drafting(names)
    compare = comparison.compare
    await compare("plain decoding again", drafted(PLAIN, prefix_cache=False))
    case = await compare("a repeated prompt (prefix cache)", drafted(PLAIN))
    case.events = f"{case.sum('cached')} found in the cache"
    await compare("speculation without a drafter", drafted(NOBODY))
    for name in names:
        await compare(f"{name} always drafts", drafted(drafting([name])))
    if len(names) > 1:
        await compare("all drafters together", drafted(together))
    await compare("all drafters, as the planner decides", drafted(drafting(names, "auto")))
    await compare(f"{BATCH} requests at once", drafted(together), batch=BATCH)

    async def resumed(request: CheckRequest) -> tuple[Output, SpeculationStats]:
        plain = comparison.plain(request).token_ids
        return await resume(client, request, together, plain[: len(plain) // 2])

    await compare("resumed in the middle", resumed)
    swapped, left = (f"drafters {change} after every {EVERY} tokens" for change in ("swapped", "detached and attached"))
    if not (comparison.wants(swapped) or comparison.wants(left)):
        return
    try:
        async with changing(client, [drafter.address for drafter in found[:2]]) as pool:
            case = await compare(swapped, pool.swapping)
            case.events, pool.events = f"{pool.events} swaps moved a running request", 0
            case = await compare(left, pool.leaving)
            case.events = f"{pool.events} detachments"
    except DraftwireError as error:
        comparison.leave_out("drafters that change", f"a drafter cannot be attached a second time: {error}")


def _notes(info: VerifierInfo, comparison: Comparison, further: Sequence[Variant]) -> list[str]:
    notes = []
    if not info.bit_exact:
        notes += [
            "the verifier does not claim equal bits in every batch (bit_exact is no), so differences are possible "
            "without a fault; a verifier with --reproducible refuses such a model on a GPU",
            _law(info, comparison),
        ]
    if info.capabilities is not None and info.capabilities.refused:
        notes.append(f"not tried, because the engine refuses it: {', '.join(info.capabilities.refused)}")
    drafted = [case for case in comparison.cases if "always" in case.name or "together" in case.name]
    silent = [case.name for case in drafted if case.compared and not case.draft_tokens]
    if silent:
        notes.append(f"no draft token was verified in: {', '.join(silent)}; there the comparison shows nothing")
    if not further:
        notes.append("other processes, numbers of threads, kernels and preemption are compared only with --target")
    return notes


def _law(info: VerifierInfo, comparison: Comparison) -> str:
    """Says which law was found to hold, and on which model."""
    engine = "" if info.capabilities is None else f", engine {info.capabilities.engine}"
    held = "does not hold" if any(case.differences for case in comparison.cases) else "holds"
    bits = "log-probabilities have equal bits"
    if comparison.gaps:
        bits = f"log-probabilities of {len(comparison.gaps)} outputs differ, by at most {max(comparison.gaps):.1g}"
    model = f"{info.model_id} ({info.dtype}, {info.device}{engine})"
    return f"law 1 (one output) {held} on {model} by what was compared; {bits}"
