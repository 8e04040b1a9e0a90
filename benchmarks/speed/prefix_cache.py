"""Measures what the prefix cache saves: chats of several turns, requests that share a system prompt.

    python -m benchmarks.speed.prefix_cache [--chats 4] [--turns 4] [--requests 8] [--system-tokens 512]
        [--runs 5] [--json]

In the first workload --chats conversations run side by side; the prompt of each turn is the conversation so far and one
more question. In the second, requests that begin with the same system prompt arrive together. Both run in turns with
and without the cache (an option of the request), on prompts unique to the run: their first tokens are its number. The
report has the time to the first token, tokens per second with prompts, and the share of prompt tokens found in the
cache. The exit status is 1 if an output differs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness.arrangements import run_batch
from benchmarks.harness.held_out import held_out_prompts, texts_of
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_run_options, cores
from benchmarks.harness.rates import whole_rate
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services
from draftwire import AsyncClient, BatchOptions, Speculation
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch, quantile
from tests.harness.checkout import MODELS

CHATS, SYSTEM = "chats", "shared system prompt"
PLAIN = Speculation(enabled=False)


@dataclass
class Case:
    """Results of one workload with or without the cache, run by run."""

    runs: list[list[Batch]] = field(default_factory=list)
    """The batches of each run; for chats, one batch per turn."""

    def first_token_ms(self, share: float, *, turns: slice = slice(None)) -> Spread:
        """Returns a quantile of the times to the first token, run by run."""
        return Spread.of(
            [
                quantile([1e3 * s.first_token_seconds for b in run[turns] for s in b.requests], share)
                for run in self.runs
            ]
        )

    def rate(self) -> Spread:
        """Tokens per second, prompts included."""
        return Spread.of([whole_rate(run) for run in self.runs])

    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were found in the cache."""
        streams = [stream for run in self.runs for batch in run for stream in batch.requests]
        return sum(stream.cached_tokens for stream in streams) / sum(stream.prompt_tokens for stream in streams)

    @property
    def token_ids(self) -> list[list[tuple[tuple[int, ...], ...]]]:
        """Returns the outputs."""
        return [[batch.token_ids for batch in run] for run in self.runs]


Measured = dict[tuple[str, bool], Case]
"""Cases by workload and by whether the cache was used."""


async def chats(
    client: AsyncClient, questions: Sequence[Sequence[Sequence[int]]], options: BatchOptions
) -> list[Batch]:
    """Runs conversations side by side. questions: for each turn, those of all chats. A turn begins when all have their
    answers."""
    history: list[list[int]] = [[] for _ in questions[0]]
    turns = []
    for asked in questions:
        prompts = [[*before, *question] for before, question in zip(history, asked, strict=True)]
        batch = await run_batch(client, prompts, options, PLAIN)
        history = [[*prompt, *stream.token_ids] for prompt, stream in zip(prompts, batch.requests, strict=True)]
        turns.append(batch)
    return turns


async def measure(client: AsyncClient, tokens: Sequence[int], options: argparse.Namespace) -> Measured:
    """Runs each workload with and without the cache, alternating which comes first."""
    measured: Measured = {(name, cached): Case() for name in (CHATS, SYSTEM) for cached in (False, True)}
    for run in range(-1, options.runs):  # the first one warms up and does not count
        number = run + 1
        system = texts_of(tokens, 2 * number, 1, options.system_tokens)[0]
        users = texts_of(tokens, 2 * number + 1, max(options.chats, options.requests), options.user_tokens)
        questions = [users[: options.chats]] * options.turns
        for cached in (False, True) if run % 2 else (True, False):
            asked: BatchOptions = {
                "max_tokens": options.max_tokens,
                "temperature": 0.0,
                "prefix_cache": cached,
            }
            turns = await chats(client, questions, asked)
            together = await run_batch(client, [[*system, *user] for user in users[: options.requests]], asked, PLAIN)
            if run >= 0:
                measured[CHATS, cached].runs.append(turns)
                measured[SYSTEM, cached].runs.append([together])
    return measured


def figures(measured: Measured, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = {
        "target": f"bundled, {options.target_millions:g} M parameters, 1 thread, cores {options.verifier_cores}",
        CHATS: f"{options.chats} side by side, {options.turns} turns of {options.user_tokens} tokens and "
        f"{options.max_tokens} more, greedy, plain decoding",
        SYSTEM: f"{options.requests} requests at once, {options.system_tokens} tokens alike and {options.user_tokens} "
        f"of their own, {options.max_tokens} more",
    }
    for name in (CHATS, SYSTEM):
        for cached in (False, True):
            case, row = measured[name, cached], f"{name}, {'with' if cached else 'without'}"
            found[f"{row}: median time to the first token, ms"] = case.first_token_ms(0.5)
            found[f"{row}: 95th percentile of it, ms"] = case.first_token_ms(0.95)
            if name == CHATS and options.turns > 1:
                found[f"{row}: median in the last turn, ms"] = case.first_token_ms(0.5, turns=slice(-1, None))
            found[f"{row}: tokens/s, with prompts"] = case.rate()
        found[f"{name}: prompt tokens found"] = f"{measured[name, True].hit_rate():.1%}"
    found["outputs_identical"] = identical(measured)
    return found


def identical(measured: Measured) -> bool:
    """Whether outputs are the same with and without the cache."""
    return all(measured[name, True].token_ids == measured[name, False].token_ids for name in (CHATS, SYSTEM))


async def _run(options: argparse.Namespace, services: Services) -> Measured:
    flags = ("--kv-slots", str(options.kv_slots))
    verifier = services.verifier(
        inflated(MODELS / "target", options.target_millions), *flags, cores=options.verifier_cores
    )
    async with AsyncClient(await asyncio.to_thread(lambda: verifier.address), timeout=600.0) as client:
        texts = [await client.tokenize(text) for text in held_out_prompts(32)]
        return await measure(client, list(itertools.chain.from_iterable(texts)), options)


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8, help="requests that share a system prompt")
    parser.add_argument("--system-tokens", type=int, default=512)
    parser.add_argument("--user-tokens", type=int, default=64)
    parser.add_argument("--kv-slots", type=int, default=32768)
    parser.add_argument(
        "--target-millions", type=float, default=400.0, help="parameters of the inflated target, in millions"
    )
    parser.add_argument("--verifier-cores", type=cores, default=[0])
    add_run_options(parser, max_tokens=32)
    options = parser.parse_args()
    with Services() as services:
        measured = asyncio.run(_run(options, services))
    print_report("prefix_cache", figures(measured, options), options)
    sys.exit(not identical(measured))


if __name__ == "__main__":
    main()
