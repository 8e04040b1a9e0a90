"""Compares routing by prompt prefix with round robin at two verifiers: prefix-cache hits and speed.

    python -m benchmarks.scale.many_verifiers [--prefixes 8] [--requests 6] [--prefix-tokens 512] [--runs 3] [--json]

--requests requests for each of --prefixes shared prefixes go to two verifiers, in a mixed order, a few at a time: by a
client that knows both and sends prompts with the same beginning to the same one, and by round robin. This is done once
with room for all prefixes in each verifier's KV slots, and once with room for some of them only. Each run has its own
prefixes. The report has the share of prompt tokens found in the prefix cache, tokens per second with prompts, the time
to the first token, and the number of requests that each verifier got. Some outputs are compared with those of one
verifier without the cache. The exit status is 1 if one differs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
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
from draftwire import AsyncClient, BatchOptions
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch, Request, quantile
from tests.harness.checkout import MODELS

BY_PREFIX, IN_TURN = "by prefix", "in turn"
ROOMY, TIGHT = "room for all prefixes", "room for some prefixes"

_COMPARED = 6
"""Compares the output of one request in this many."""


@dataclass
class Case:
    """Results of one way of spreading requests, run by run."""

    runs: list[Batch] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    """Number of requests that the first verifier got in each run."""
    differing: int = 0

    def hit_rate(self) -> Spread:
        """Share of the prompts' tokens found in the cache, in each run."""
        return Spread.of(
            [
                sum(s.cached_tokens for s in run.requests) / sum(s.prompt_tokens for s in run.requests)
                for run in self.runs
            ]
        )

    def first_token_ms(self, share: float) -> Spread:
        """Returns a quantile of the times to the first token, for each run."""
        return Spread.of([quantile([1e3 * s.first_token_seconds for s in run.requests], share) for run in self.runs])

    def rate(self) -> Spread:
        """Tokens per second, prompts included."""
        return Spread.of([whole_rate([run]) for run in self.runs])


def prompts_of(tokens: Sequence[int], run: int, options: argparse.Namespace) -> list[list[int]]:
    """Returns the prompts of a run, in a mixed order that is the same each time."""
    prefixes = texts_of(tokens, run, options.prefixes, options.prefix_tokens)
    prompts = [
        [*prefix, *tokens[number : number + options.user_tokens]]
        for number, prefix in itertools.product(range(options.requests), prefixes)
    ]
    random.Random(run).shuffle(prompts)
    return prompts


class Both:
    """Two verifiers, with clients of both and of each."""

    def __init__(self, addresses: Sequence[str], options: argparse.Namespace):
        self._options = options
        self._both = AsyncClient(addresses, timeout=600.0)
        self._each = [AsyncClient(address, timeout=600.0) for address in addresses]
        self._asked: BatchOptions = {"max_tokens": options.max_tokens, "temperature": 0.0}

    async def close(self) -> None:
        """Closes the clients."""
        for client in (self._both, *self._each):
            await client.close()

    async def tokens(self) -> list[int]:
        """Returns the text that prompts are made of."""
        texts = [await self._each[0].tokenize(text) for text in held_out_prompts(32)]
        return list(itertools.chain.from_iterable(texts))

    async def run(self, how: str, prompts: Sequence[Sequence[int]], case: Case) -> None:
        """Runs the requests of one run, a few at a time."""
        clients = itertools.cycle([self._both] if how == BY_PREFIX else self._each)
        places = [next(clients) for _ in prompts]
        before = self._both.verifiers[0].requests
        waiting = iter(enumerate(zip(places, prompts, strict=True)))
        streams: dict[int, Request] = {}

        async def work() -> None:
            for number, (client, prompt) in waiting:  # shared: each stream takes the next one
                streams[number] = (await run_batch(client, [prompt], self._asked, first_seed=number)).requests[0]

        async with asyncio.TaskGroup() as workers:
            for _ in range(self._options.concurrency):
                workers.create_task(work())
        case.runs.append(Batch(tuple(streams[number] for number in range(len(prompts)))))
        at_first = self._both.verifiers[0].requests - before if how == BY_PREFIX else places.count(self._each[0])
        case.shares.append(at_first)

    async def compare(self, prompts: Sequence[Sequence[int]], case: Case) -> None:
        """Compares some outputs of the last run with those of one verifier without its cache."""
        for number in range(0, len(prompts), _COMPARED):
            asked: BatchOptions = {**self._asked, "prefix_cache": False}
            alone = await run_batch(self._each[0], [prompts[number]], asked, first_seed=number)
            case.differing += alone.token_ids[0] != case.runs[-1].requests[number].token_ids


Measured = dict[tuple[str, str], Case]
"""Cases by cache room and by how requests are spread."""


async def measure(both: Both, options: argparse.Namespace) -> dict[str, Case]:
    """Runs both ways in turns, alternating which comes first."""
    measured = {BY_PREFIX: Case(), IN_TURN: Case()}
    tokens = await both.tokens()
    await both.run(IN_TURN, prompts_of(tokens, 0, options)[:4], Case())  # warms up
    number = 0
    for run in range(options.runs):
        for how in (BY_PREFIX, IN_TURN) if run % 2 else (IN_TURN, BY_PREFIX):
            number += 1
            prompts = prompts_of(tokens, number, options)
            await both.run(how, prompts, measured[how])
            await both.compare(prompts, measured[how])
    return measured


def figures(measured: Measured, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = {
        "target": f"bundled, {options.target_millions:g} M parameters, two verifiers with 1 thread each, "
        f"cores {options.first_cores} and {options.second_cores}",
        "requests": f"{options.requests} for each of {options.prefixes} prefixes of {options.prefix_tokens} tokens, "
        f"{options.user_tokens} of their own, {options.max_tokens} more, greedy, plain decoding, "
        f"{options.concurrency} at a time",
        "KV slots of each verifier": f"{ROOMY}: {options.roomy_slots}; {TIGHT}: {options.tight_slots}",
    }
    for (room, how), case in measured.items():
        row = f"{room}, {how}"
        found[f"{row}: share of prompt tokens found"] = case.hit_rate()
        found[f"{row}: tokens/s, with prompts"] = case.rate()
        found[f"{row}: median time to the first token, ms"] = case.first_token_ms(0.5)
        found[f"{row}: requests at the first verifier"] = case.shares
    found["outputs_identical"] = identical(measured)
    return found


def identical(measured: Measured) -> bool:
    """Whether no output differs."""
    return not any(case.differing for case in measured.values())


async def _run(options: argparse.Namespace) -> Measured:
    model = inflated(MODELS / "target", options.target_millions)
    measured: Measured = {}
    for room, slots in ((ROOMY, options.roomy_slots), (TIGHT, options.tight_slots)):
        with Services() as services:
            flags = ("--kv-slots", str(slots))
            pair = [services.verifier(model, *flags, cores=on) for on in (options.first_cores, options.second_cores)]
            both = Both([await asyncio.to_thread(lambda s=service: s.address) for service in pair], options)
            try:
                for how, case in (await measure(both, options)).items():
                    measured[room, how] = case
            finally:
                await both.close()
    return measured


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefixes", type=int, default=8)
    parser.add_argument("--requests", type=int, default=6, help="number of requests for each prefix")
    parser.add_argument("--prefix-tokens", type=int, default=512)
    parser.add_argument("--user-tokens", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--roomy-slots", type=int, default=32768)
    parser.add_argument("--tight-slots", type=int, default=4096)
    parser.add_argument(
        "--target-millions", type=float, default=50.0, help="parameters of the inflated target, in millions"
    )
    parser.add_argument("--first-cores", type=cores, default=[0])
    parser.add_argument("--second-cores", type=cores, default=[1])
    add_run_options(parser, max_tokens=16)
    parser.set_defaults(runs=3)
    options = parser.parse_args()
    measured = asyncio.run(_run(options))
    print_report("many_verifiers", figures(measured, options), options)
    sys.exit(not identical(measured))


if __name__ == "__main__":
    main()
