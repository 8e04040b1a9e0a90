"""Alternative ways to generate the same tokens, measured in turns and compared within each run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, TypeVar

from benchmarks.harness.report import Spread, print_report
from benchmarks.harness.services import Services
from benchmarks.harness.stream_batch import StreamBatch, run_batch
from draftwire import AsyncClient, BatchOptions, Speculation

WayT = TypeVar("WayT")

PLAIN = Speculation(enabled=False)
WARM_UP_TOKENS = 24


@dataclass(frozen=True)
class Arrangement:
    """One way to generate."""

    name: str
    client: AsyncClient
    reference: str
    """Name of the arrangement whose outputs this one must have; its own name compares nothing."""
    speculation: Speculation = PLAIN
    temperature: float = 0.0

    async def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> StreamBatch:
        """Generates for all prompts side by side."""
        options: BatchOptions = {"max_tokens": max_tokens, "temperature": self.temperature}
        return await run_batch(self.client, prompts, options, self.speculation)


@dataclass
class Measured:
    """Measurements of the arrangements, run by run."""

    batches: dict[str, list[list[StreamBatch]]] = field(default_factory=dict)
    """By arrangement: the batches of each run."""
    references: dict[str, str] = field(default_factory=dict)

    def add(self, other: Measured) -> None:
        """Adds the measurements of other arrangements."""
        self.batches |= other.batches
        self.references |= other.references

    def rates(self, name: str) -> list[float]:
        """Returns the tokens per second of each run."""
        return [sum(b.tokens for b in run) / sum(b.seconds for b in run) for run in self.batches[name]]

    def why_not(self, name: str) -> str | None:
        """Returns why an arrangement has no rate (its requests never all ran at once), or None."""
        try:
            self.rates(name)
        except ValueError as error:
            return str(error)
        return None

    def rate(self, name: str) -> Spread:
        """Returns the tokens per second."""
        return Spread.of(self.rates(name))

    def ratio(self, name: str, *over: str) -> Spread:
        """Returns one arrangement's rate over another's in the same run, or over the mean of several."""
        means = map(mean, zip(*map(self.rates, over), strict=True))
        return Spread.of([a / b for a, b in zip(self.rates(name), means, strict=True)])

    def step_ms(self, name: str) -> Spread:
        """Returns the milliseconds of a step of plain decoding, in which every stream gets one token."""
        return Spread.of(
            [
                1e3 * sum(len(b.streams) * b.seconds for b in run) / sum(b.tokens for b in run)
                for run in self.batches[name]
            ]
        )

    def acceptance_length(self, name: str) -> float:
        """Returns the tokens of a sequence per step, including the bonus token."""
        return self._sum(name, "token_ids") / self._sum(name, "steps")

    def nodes_per_step(self, name: str) -> float:
        """Returns the draft tokens verified per sequence and step."""
        return self._sum(name, "draft_tokens") / self._sum(name, "steps")

    def acceptance_rate(self, name: str) -> float:
        """Returns the accepted share of the verified draft tokens; 0 without any."""
        return self._sum(name, "accepted_tokens") / max(1, self._sum(name, "draft_tokens"))

    def hit_share(self, name: str) -> float:
        """Returns the share of verdicts whose last token was a node of the tree, so that the subtree below it
        survived."""
        return self._sum(name, "hits") / self._sum(name, "steps")

    def differing(self) -> list[str]:
        """Returns the arrangements with outputs that differ from their reference, with the number of these."""
        found = []
        for name, runs in self.batches.items():
            expected = [batch.token_ids for batch in self.batches[self.references[name]][0]]
            pairs = [
                (ours, theirs)
                for run in runs
                for batch, wanted in zip(run, expected, strict=True)
                for ours, theirs in zip(batch.token_ids, wanted, strict=True)
            ]
            count = sum(ours != theirs for ours, theirs in pairs)
            if count:
                found.append(f"{name}: {count} of {len(pairs)}")
        return found

    def figures(self) -> dict[str, object]:
        """Returns the figures that end every report."""
        return {"outputs that differ": self.differing() or "none", "outputs_identical": not self.differing()}

    def _sum(self, name: str, what: str) -> int:
        values = [getattr(stream, what) for run in self.batches[name] for batch in run for stream in batch.streams]
        return sum(value if isinstance(value, int) else len(value) for value in values)


@dataclass(frozen=True)
class Comparison:
    """Arrangements that generate for the same prompts."""

    arrangements: Sequence[Arrangement]
    batches: Sequence[Sequence[Sequence[int]]]
    """Batches of prompts: those of one batch run side by side, batches one after another."""
    max_tokens: int


async def measure(
    comparisons: Sequence[Comparison], runs: int, *, warm_up: bool = True, verbose: bool = False
) -> Measured:
    """Measures all comparisons `runs` times. The arrangements of a comparison alternate from batch to batch.

    warm_up: begin with a few uncounted tokens of each arrangement, from which the services learn what drafters cost and
    gain.
    """
    measured = Measured()
    for comparison in comparisons:
        for arrangement in comparison.arrangements:
            measured.references[arrangement.name] = arrangement.reference
            measured.batches[arrangement.name] = []
            if warm_up:
                await arrangement.run(comparison.batches[0], min(WARM_UP_TOKENS, comparison.max_tokens))
    for run in range(runs):
        for comparison in comparisons:
            for arrangement in comparison.arrangements:
                measured.batches[arrangement.name].append([])
            for number, prompts in enumerate(comparison.batches):
                for arrangement in turned(comparison.arrangements, run + number):
                    batch = await arrangement.run(prompts, comparison.max_tokens)
                    measured.batches[arrangement.name][run].append(batch)
            if verbose:
                for arrangement in comparison.arrangements:
                    print(f"run {run}, {summary(measured, arrangement.name)}", file=sys.stderr, flush=True)
    return measured


def measure_and_report(
    name: str,
    run: Callable[[argparse.Namespace, Services], Coroutine[Any, Any, Measured]],
    figures: Callable[[Measured, argparse.Namespace], Mapping[str, object]],
    options: argparse.Namespace,
) -> int:
    """Measures with services that end afterwards, and prints the report. Returns the exit status: 1 if an output
    differs."""
    with Services() as services:
        measured = asyncio.run(run(options, services))
    print_report(name, figures(measured, options), options)
    return bool(measured.differing())


def summary(measured: Measured, name: str) -> str:
    """Returns an arrangement's latest rate and how it speculates, in words."""
    return (
        f"{name}: {measured.rates(name)[-1]:.2f} tokens/s, {measured.acceptance_length(name):.2f} tokens and "
        f"{measured.nodes_per_step(name):.1f} draft tokens a step, {measured.hit_share(name):.0%} hits"
    )


def turned(ways: Sequence[WayT], by: int) -> list[WayT]:
    """Returns the ways in another order for each turn, so that what one leaves behind (heat, memory, caches) affects
    all.

    The orders are those of a balanced Latin square (Williams 1949, "Experimental designs balanced for the estimation of
    residual effects of treatments"): in as many turns as there are ways, or twice as many if that number is odd, each
    way is in each place, and follows each other one, equally often.
    """
    count = len(ways)
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    order = [ways[(by + step) % count] for step in zigzag]
    return order[::-1] if count % 2 and by // count % 2 else order
