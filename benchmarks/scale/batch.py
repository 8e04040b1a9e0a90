"""Measures 1 to 32 requests at once: tokens per second, time to the first token, time between tokens.

    python -m benchmarks.scale.batch [--streams 1,2,4,8,16,32] [--draft-tokens 4] [--runs 5] [--json]

--streams requests run at once through the SDK, with one drafter attached: in turns without speculation ("off"), as the
planner decides ("auto"), and as it decides with at most a fixed number of draft tokens per step ("limited"; nothing
forces a verifier to verify what does not pay). Prompts are computed each time: the requests bypass the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys

from benchmarks.harness.arrangements import run_batch
from benchmarks.harness.held_out import held_out_prompts, texts_of
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, counts, pair_figures
from benchmarks.harness.rates import whole_rate
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services, started
from draftwire import AsyncClient, BatchOptions, Speculation
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch, quantile, turned
from tests.harness.checkout import MODELS

OFF, AUTO, LIMITED = "off", "auto", "limited"

Measured = dict[tuple[int, str], list[Batch]]
"""Batches by the number of requests and the kind of speculation, one per run."""


def kinds(draft_tokens: int) -> dict[str, Speculation]:
    """Returns the kinds of speculation to compare."""
    return {
        OFF: Speculation(enabled=False),
        AUTO: Speculation(),
        LIMITED: Speculation(max_draft_tokens=draft_tokens),
    }


async def run(options: argparse.Namespace, services: Services) -> Measured:
    """Runs the comparison."""
    slots = max(options.requests) * (options.prompt_tokens + options.max_tokens) + 4096
    target = inflated(MODELS / "target", options.target_millions)
    draft = inflated(MODELS / "draft", options.draft_millions)
    (address,), (drafter,) = await asyncio.gather(
        started([lambda: services.verifier(target, "--kv-slots", str(slots), cores=options.verifier_cores)]),
        started([lambda: services.drafter(draft, "--kv-slots", str(slots), cores=options.drafter_cores)]),
    )
    measured: Measured = {(streams, kind): [] for streams in options.requests for kind in (OFF, AUTO, LIMITED)}
    request: BatchOptions = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "prefix_cache": False,
    }
    async with AsyncClient(address, timeout=600.0) as client:
        await client.drafters.attach(drafter)
        texts = [await client.tokenize(text) for text in held_out_prompts(32)]
        tokens = list(itertools.chain.from_iterable(texts))
        for number in range(options.runs + 1):  # the first run warms up and does not count
            for streams in options.requests:
                prompts = texts_of(tokens, number, streams, options.prompt_tokens)
                for kind, speculation in turned(list(kinds(options.draft_tokens).items()), number):
                    batch = await run_batch(client, prompts, request, speculation)
                    if number:
                        measured[streams, kind].append(batch)
    return measured


def figures(measured: Measured, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = pair_figures(options) | {
        "requests": f"prompts of {options.prompt_tokens} tokens, {options.max_tokens} more, temperature "
        f"{options.temperature:g}; limited: at most {options.draft_tokens} draft tokens a step",
    }
    for (streams, kind), batches in measured.items():
        row = f"{streams} requests, {kind}"
        found[f"{row}: tokens/s, with prompts"] = Spread.of([whole_rate([batch]) for batch in batches])
        found[f"{row}: median time to the first token, ms"] = Spread.of(
            [1e3 * quantile([s.first_token_seconds for s in batch.requests], 0.5) for batch in batches]
        )
        found[f"{row}: 95th percentile of the time between tokens, ms"] = Spread.of(
            [1e3 * quantile([gap for s in batch.requests for gap in s.gaps], 0.95) for batch in batches]
        )
        if kind != OFF:
            found[f"{row} / off"] = Spread.ratio(
                [whole_rate([batch]) for batch in batches], [whole_rate([batch]) for batch in measured[streams, OFF]]
            )
    found["outputs_identical"] = identical(measured)
    return found


def identical(measured: Measured) -> bool:
    """Whether the outputs equal those without speculation."""
    return all(
        [batch.token_ids for batch in batches] == [batch.token_ids for batch in measured[streams, OFF]]
        for (streams, _), batches in measured.items()
    )


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--streams", type=counts, default=[1, 2, 4, 8, 16, 32], help="numbers of concurrent requests, comma-separated"
    )
    parser.add_argument("--draft-tokens", type=int, default=4, help="most draft tokens of the limited requests")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    add_pair_options(parser)
    add_run_options(parser, max_tokens=64)
    options = parser.parse_args()
    with Services() as services:
        measured = asyncio.run(run(options, services))
    print_report("batch", figures(measured, options), options)
    sys.exit(not identical(measured))


if __name__ == "__main__":
    main()
