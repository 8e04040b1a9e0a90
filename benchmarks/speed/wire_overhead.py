"""Measures what two processes and the wire cost: engine and drafter in one process and as two services.

    python -m benchmarks.speed.wire_overhead [--draft models/draft-untrained] [--json]

The bundled pair is inflated to a size at which verifying reads weights from memory (models/inflate.py; kept in a cache
outside the repository). Held-out prompts are decoded greedily, one request at a time, and timed by the caller: the
thread that verifies, or a client of the services. The arrangements take turns from request to request. Rates cover the
tokens after a request's first ones, because reading the prompt is the same work everywhere.

In one process the two threads share Python's interpreter lock; the services do not. A third arrangement has only a pipe
between engine and drafter: the difference from it is the cost of gRPC, the event loops and the client.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.harness.arrangements import run_greedily
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_size_options, cores
from benchmarks.harness.rates import acceptance_length, acceptance_rate, decode_rate, total, whole_rate
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from benchmarks.speed.without_services import serve
from draftwire import AsyncClient
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch, turns
from tests.harness.checkout import MODELS

SLOTS = 4096
_LOAD_SECONDS = 300.0


class WithoutServices:
    """The engine in a child process, with the drafter in a thread of it or in another process."""

    def __init__(self, target: Path, draft: Path, options: argparse.Namespace):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (target, draft, SLOTS, options.verifier_cores, options.drafter_cores)
        self._process = context.Process(target=serve, args=(other, arguments))  # not a daemon: it has a child
        self._process.start()

    def wait(self) -> None:
        """Waits until the models are loaded."""
        if not self._connection.poll(_LOAD_SECONDS):
            raise TimeoutError("the models do not load")
        self._connection.recv()

    def run(self, prompt: Sequence[int], max_tokens: int, drafter: str | None) -> Batch:
        """Runs a request with the drafter in a "thread" or at the end of a "pipe", or without one."""
        self._connection.send((prompt, max_tokens, drafter))
        batch: Batch = self._connection.recv()
        return batch

    def stop(self) -> None:
        """Ends the process."""
        self._connection.send(None)
        self._process.join(10)


async def measure(options: argparse.Namespace, services: Services) -> dict[str, object]:
    """Runs everything; returns the figures."""
    target = inflated(MODELS / "target", options.target_millions)
    draft = inflated(options.draft.resolve(), options.draft_millions)
    flags = ("--kv-slots", str(SLOTS))
    # The single process has no prefix cache either.
    verifier = services.verifier(target, *flags, "--no-prefix-cache", cores=options.verifier_cores)
    drafter = services.drafter(draft, *flags, cores=options.drafter_cores)
    addresses = [await asyncio.to_thread(lambda s=service: s.address) for service in (verifier, drafter)]
    without = WithoutServices(target, draft, options)
    try:
        await asyncio.to_thread(without.wait)

        async with AsyncClient(addresses[0], timeout=300.0) as client:
            await client.drafters.attach(addresses[1], "drafter")
            prompts = [await client.tokenize(text) for text in held_out_prompts(options.prompts)]
            length = options.max_tokens
            arrangements: dict[str, Callable[[Sequence[int]], Awaitable[Batch]]] = {
                "plain": lambda prompt: asyncio.to_thread(without.run, prompt, length, None),
                "one process": lambda prompt: asyncio.to_thread(without.run, prompt, length, "thread"),
                "pipe": lambda prompt: asyncio.to_thread(without.run, prompt, length, "pipe"),
                "plain service": lambda prompt: run_greedily(client, prompt, length, drafted=False),
                "two services": lambda prompt: run_greedily(client, prompt, length, drafted=True),
            }
            runs: dict[str, list[list[Batch]]] = {name: [] for name in arrangements}
            for prompt in prompts[:2]:  # warms up
                for generate in arrangements.values():
                    await generate(prompt)
            for run in range(options.runs):
                for each in runs.values():
                    each.append([])
                for turn in turns(list(arrangements), prompts, [run]):
                    runs[turn.way][run].append(await arrangements[turn.way](turn.work))
                if options.verbose:
                    for name, each in runs.items():
                        rate, per_step = decode_rate(each[run]), acceptance_length(each[run])
                        print(f"{name:15} {rate:6.2f} tokens/s, {per_step:.2f} tokens a step", file=sys.stderr)
            listed = (await client.drafters.list())[0]
    finally:
        without.stop()
    figures: dict[str, object] = {
        "pair": f"bundled, inflated: target {options.target_millions:g} M, {options.draft.name} "
        f"{options.draft_millions:g} M parameters, bfloat16, 1 thread each",
        "cores": f"verifying on {options.verifier_cores}, drafting on {options.drafter_cores}, the client on any",
        "requests": f"{len(prompts)} held-out prompts, greedy, {options.max_tokens} tokens, one at a time",
    }
    for name, each in runs.items():
        together = [batch for run in each for batch in run]
        figures[f"{name}, tokens/s"] = Spread.of([decode_rate(run) for run in each])
        if "plain" not in name:
            figures[f"{name}, speculation"] = (
                f"{total(together, 'steps')} steps, {acceptance_length(together):.3f} tokens a step, "
                f"{acceptance_rate(together) or 0.0:.0%} of {total(together, 'draft_tokens')} draft tokens accepted"
            )

    def ratio(name: str, over: str, rate: Callable[[Sequence[Batch]], float] = decode_rate) -> Spread:
        return Spread.ratio(list(map(rate, runs[name])), list(map(rate, runs[over])))

    return figures | {
        "two services / one process": ratio("two services", "one process"),
        "two services / one process, prompts included": ratio("two services", "one process", whole_rate),
        "two services / pipe": ratio("two services", "pipe"),
        "two services / plain service": ratio("two services", "plain service"),
        "one process / plain": ratio("one process", "plain"),
        "drafter_step_ms": round(1e3 * (listed.step_seconds or 0.0), 2),
        "drafter_response_ms": round(1e3 * (listed.response_seconds or 0.0), 2),
        "outputs_identical": len({str([batch.token_ids for batch in each[0]]) for each in runs.values()}) == 1,
    }


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=Path, default=MODELS / "draft")
    add_size_options(parser)
    parser.add_argument("--verifier-cores", type=cores, default=[0])
    parser.add_argument("--drafter-cores", type=cores, default=[1])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--verbose", action="store_true", help="print every run")
    add_report_options(parser)
    options = parser.parse_args()
    with Services() as services:
        figures = asyncio.run(measure(options, services))
    print_report("wire_overhead", figures, options)


if __name__ == "__main__":
    main()
