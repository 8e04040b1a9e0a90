"""Runs both services on one GPU, as processes: outputs and token rates, plainly, with the drafter, while it changes.

    python -m benchmarks.gpu.services [--prompts 4] [--tokens 64] [--swaps 10] [--flags=--no-cuda-graphs]

Uses the bundled pair as it is, so the figures are those of event loop, gRPC and engine around short passes, not of a
large model. Then the drafter's model is replaced ten times while requests run, and the drafter is killed: figures are
the memory after each swap, and whether outputs stay the plain ones.

Needs the services' packages; scripts/release/service_wheels.py collects them for a machine without a network.
--device cpu tries the code.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Sequence

from benchmarks.gpu.figure_log import FigureLog
from benchmarks.gpu.model_swaps import ModelSwaps
from benchmarks.harness.arrangements import run_greedily
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.rates import acceptance_length, decode_rate
from benchmarks.harness.report import add_report_options
from benchmarks.harness.services import Services
from draftwire import AsyncClient
from draftwire_tools.turns import Batch
from tests.harness.checkout import MODELS


async def measure(options: argparse.Namespace, services: Services, log: FigureLog) -> None:
    """Starts the services one after the other, since each times its steps at start, and adds the figures to the log."""
    flags = ("--device", options.device, "--kv-slots", "8192", *options.flags)
    verifier = services.verifier(MODELS / "target", *flags)
    address = await asyncio.to_thread(lambda: verifier.address)
    log.add({"verifier": _logged(verifier.events(), "model loaded")})
    drafter = services.drafter(MODELS / "draft", *flags)
    drafter_address = await asyncio.to_thread(lambda: drafter.address)
    log.add({"drafter": _logged(drafter.events(), "model loaded")})
    async with AsyncClient(address, timeout=300.0) as client:
        prompts = [await client.tokenize(text) for text in held_out_prompts(options.prompts)]
        plain = await _run(client, prompts, options.tokens, drafted=False)
        log.add({"plain tokens/s": round(decode_rate(plain), 1)})
        await client.drafters.attach(drafter_address, "drafter")
        drafted = await _run(client, prompts, options.tokens, drafted=True)
        same = sum(ours.token_ids == theirs.token_ids for ours, theirs in zip(plain, drafted, strict=True))
        log.add(
            {
                "drafted tokens/s": round(decode_rate(drafted), 1),
                "tokens a step": round(acceptance_length(drafted), 2),
                "outputs that are the plain ones": f"{same} of {len(prompts)}",
            }
        )
        if options.swaps:
            swaps = ModelSwaps(client, drafter, prompts, options.tokens, options.device)
            models = (MODELS / "draft-early", MODELS / "draft")
            await swaps.run([batch.token_ids[0] for batch in plain], models, options.swaps, log)


async def _run(client: AsyncClient, prompts: Sequence[Sequence[int]], tokens: int, drafted: bool) -> list[Batch]:
    """Runs the prompts one after another, the first twice to warm up."""
    await run_greedily(client, prompts[0], tokens, drafted=drafted)
    return [await run_greedily(client, prompt, tokens, drafted=drafted) for prompt in prompts]


def _logged(events: Sequence[dict[str, object]], name: str) -> object:
    """The line of a service's log that describes its model."""
    return next((event for event in events if event["event"] == name), f"no line {name!r} in its log")


def main() -> None:
    """Runs the services and prints the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.services",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the code")
    parser.add_argument("--prompts", type=int, default=4, help="number of held-out prompts")
    parser.add_argument("--tokens", type=int, default=64, help="tokens generated from each prompt")
    parser.add_argument("--swaps", type=int, default=10, help="changes of the drafter's model; 0 to leave it alive")
    parser.add_argument("--flags", type=shlex.split, default=[], help="further flags of both services")
    add_report_options(parser)
    options = parser.parse_args()
    log = FigureLog(options.json)
    with Services() as services, log.saved(options):
        asyncio.run(measure(options, services, log))


if __name__ == "__main__":
    main()
