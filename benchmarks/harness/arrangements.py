"""Alternative ways to generate the same tokens, measured in turns and compared within each run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from benchmarks.harness.rates import acceptance_length, acceptance_rate, decode_rate, total
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services
from draftwire import AsyncClient, BatchOptions, GenerateOptions, Speculation
from draftwire_tools import turns
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch

PLAIN = Speculation(enabled=False)
WARM_UP_TOKENS = 24


async def run_batch(
    client: AsyncClient,
    prompts: Sequence[Sequence[int]],
    options: BatchOptions,
    speculation: Speculation = PLAIN,
    first_seed: int = 0,
) -> Batch:
    """Runs a request for each prompt, all at once, with seeds in a row."""
    asked: GenerateOptions = {**options, "ignore_eos": True, "speculation": speculation}
    numbered = enumerate(prompts, first_seed)
    return await turns.run_batch(client, [(prompt, {**asked, "seed": seed}) for seed, prompt in numbered])


async def run_greedily(client: AsyncClient, prompt: Sequence[int], max_tokens: int, *, drafted: bool) -> Batch:
    """Runs one greedy request."""
    return await run_batch(
        client, [prompt], {"max_tokens": max_tokens, "temperature": 0.0}, Speculation(enabled=drafted)
    )


@dataclass(frozen=True)
class Arrangement:
    """One way to generate."""

    name: str
    client: AsyncClient
    reference: str
    """Name of the arrangement whose outputs this one must have; its own name compares nothing."""
    speculation: Speculation = PLAIN
    temperature: float = 0.0

    async def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Batch:
        """Generates for all prompts side by side."""
        options: BatchOptions = {"max_tokens": max_tokens, "temperature": self.temperature}
        return await run_batch(self.client, prompts, options, self.speculation)


@dataclass
class Measured:
    """Measurements of the arrangements, run by run."""

    batches: dict[str, list[list[Batch]]] = field(default_factory=dict)
    """By arrangement: the batches of each run."""
    references: dict[str, str] = field(default_factory=dict)

    def add(self, other: Measured) -> None:
        """Adds the measurements of other arrangements."""
        self.batches |= other.batches
        self.references |= other.references

    def rates(self, name: str) -> list[float]:
        """Returns the tokens per second of each run."""
        return [decode_rate(run) for run in self.batches[name]]

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
        return Spread.ratio(self.rates(name), list(map(mean, zip(*map(self.rates, over), strict=True))))

    def step_ms(self, name: str) -> Spread:
        """Returns the milliseconds of a step of plain decoding, in which every request gets one token."""
        return Spread.of(
            [
                1e3 * sum(len(b.requests) * b.seconds for b in run) / sum(b.tokens for b in run)
                for run in self.batches[name]
            ]
        )

    def acceptance_length(self, name: str) -> float:
        """Returns the tokens of a sequence per step, including the bonus token."""
        return acceptance_length(self._all(name))

    def nodes_per_step(self, name: str) -> float:
        """Returns the draft tokens verified per sequence and step."""
        return total(self._all(name), "draft_tokens") / total(self._all(name), "steps")

    def acceptance_rate(self, name: str) -> float:
        """Returns the accepted share of the verified draft tokens; 0 without any."""
        return acceptance_rate(self._all(name)) or 0.0

    def hit_share(self, name: str) -> float:
        """Returns the share of verdicts whose last token was a node of the tree, so that the subtree below it
        survived."""
        return total(self._all(name), "hits") / total(self._all(name), "steps")

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

    def _all(self, name: str) -> list[Batch]:
        return [batch for run in self.batches[name] for batch in run]


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
            measured.batches[arrangement.name] = [[] for _ in range(runs)]
            if warm_up:
                await arrangement.run(comparison.batches[0], min(WARM_UP_TOKENS, comparison.max_tokens))
    for run in range(runs):
        for comparison in comparisons:
            for turn in turns.turns(comparison.arrangements, comparison.batches, [run]):
                batch = await turn.way.run(turn.work, comparison.max_tokens)
                measured.batches[turn.way.name][run].append(batch)
            if verbose:
                for arrangement in comparison.arrangements:
                    print(f"run {run}, {summary(measured, arrangement.name, run)}", file=sys.stderr, flush=True)
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
    print_report(name, dict(figures(measured, options)), options)
    return bool(measured.differing())


def summary(measured: Measured, name: str, run: int) -> str:
    """Returns an arrangement's rate in a run and how it speculated in it, in words."""
    one = Measured({name: [measured.batches[name][run]]})
    return (
        f"{name}: {one.rates(name)[0]:.2f} tokens/s, {one.acceptance_length(name):.2f} tokens and "
        f"{one.nodes_per_step(name):.1f} draft tokens a step, {one.hit_share(name):.0%} hits"
    )
