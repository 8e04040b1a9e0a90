"""Measures 1 to 32 streams with no drafter, one and two, and what a step costs as contexts grow.

    python -m benchmarks.scale.scaling [--streams 1,2,4,8,16,32] [--contexts 128,512,1024,2048] [--runs 5] [--json]

Held-out prompts are decoded greedily, as many side by side as there are streams. With two drafters the verifier gives
each request one of them. Rates are totals over all streams, in the time in which all requests of a batch decode.

The cost of a step is that of plain decoding, by the number of streams and the final length of their contexts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import sys
from collections.abc import Sequence

from benchmarks.harness.arrangements import PLAIN, Arrangement, Comparison, Measured, measure, measure_and_report
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, counts, pair_figures
from benchmarks.harness.services import Services, started
from draftwire import AsyncClient, Speculation
from tests.harness.checkout import MODELS

DRAFTERS = ("no drafter", "one drafter", "two drafters")
GOAL = 4.0
"""Goal for the total tokens/s at 16 streams, relative to one stream."""
_PROMPT_ROWS = 24
"""Prompt tokens that a step is assumed to compute beside others: a low estimate, since a higher one only takes more
time."""
_LEAST_STEPS = 16
"""Least number of steps timed for a step's cost."""
_FEW = 4
"""With fewer streams than this, a run uses this many prompts, one after another, so that a single prompt does not
decide."""


def row(streams: int, drafters: str) -> str:
    """Returns the name of an arrangement."""
    return f"{streams} streams, {drafters}"


def cell(streams: int, context: int) -> str:
    """Returns the name of a measurement of a step's cost."""
    return f"step of {streams} streams, context {context}"


def cost_tokens(streams: int, context: int) -> int:
    """Returns the tokens to generate so that all streams decode side by side for some steps, although the first streams
    decode while the last prompts are still read."""
    return _LEAST_STEPS + math.ceil(streams * context / _PROMPT_ROWS)


def long_prompts(texts: Sequence[Sequence[int]], count: int, length: int) -> list[list[int]]:
    """Returns `count` prompts of a length, each made of the texts starting with another one."""
    return [
        list(itertools.islice(itertools.chain.from_iterable(itertools.cycle([*texts[i:], *texts[:i]])), length))
        for i in range(count)
    ]


async def run(options: argparse.Namespace, services: Services) -> Measured:
    """Runs the measurement."""
    longest = max(options.cost_streams, default=0) * max(options.contexts, default=0)
    slots = max(longest, max(options.streams) * (options.prompt_tokens + options.max_tokens)) + 4096
    flags = ("--kv-slots", str(slots))
    target = inflated(MODELS / "target", options.target_millions)
    draft = inflated(MODELS / "draft", options.draft_millions)
    (address,), drafters = await asyncio.gather(
        started([lambda: services.verifier(target, *flags, cores=options.verifier_cores)]),
        started([lambda: services.drafter(draft, "--kv-slots", "16384", cores=options.drafter_cores)] * 2),
    )
    async with AsyncClient(address, timeout=600.0) as client:
        for number, drafter in enumerate(drafters):
            await client.drafters.attach(drafter, f"drafter {number}")
        texts = [await client.tokenize(text) for text in held_out_prompts(max(options.streams) + _FEW)]
        prompts = [text[: options.prompt_tokens] for text in texts]
        speculations = (PLAIN, Speculation(drafter="drafter 0"), Speculation())
        comparisons = []
        for streams in options.streams:
            arrangements = [
                Arrangement(row(streams, name), client, row(streams, DRAFTERS[0]), speculation)
                for name, speculation in zip(DRAFTERS, speculations, strict=True)
            ]
            batches = [prompts[i : i + streams] for i in range(0, max(_FEW, streams), streams)]
            comparisons.append(Comparison(arrangements, batches, options.max_tokens))
        measured = await measure(comparisons, options.runs, verbose=options.verbose)
        costs = []
        for streams in options.cost_streams:
            for context in options.contexts:
                tokens = cost_tokens(streams, context)
                if tokens >= context:
                    print(f"{cell(streams, context)}: left out, its prompts would be empty", file=sys.stderr)
                    continue
                name = cell(streams, context)
                batch = long_prompts(texts, streams, context - tokens)
                costs.append(Comparison([Arrangement(name, client, name)], [batch], tokens))
        measured.add(await measure(costs, options.runs, warm_up=False, verbose=options.verbose))
        return measured


def figures(measured: Measured, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = pair_figures(options) | {
        "requests": f"{options.prompt_tokens} tokens of held-out prompts, {options.max_tokens} tokens more, greedy",
    }
    slower = []
    for streams in options.streams:
        plain = row(streams, DRAFTERS[0])
        if reason := measured.why_not(plain):
            found[plain] = reason
            continue
        found[f"{plain}, tokens/s"] = measured.rate(plain)
        for name in DRAFTERS[1:]:
            each = row(streams, name)
            if reason := measured.why_not(each):
                found[each] = reason
                continue
            ratio = measured.ratio(each, plain)
            found[f"{each}, tokens/s"] = measured.rate(each)
            found[f"{each} / plain"] = ratio
            found[f"{each}, speculation"] = (
                f"{measured.acceptance_length(each):.2f} tokens and {measured.nodes_per_step(each):.2f} draft tokens a "
                f"step and sequence, {measured.hit_share(each):.0%} hits"
            )
            if ratio.median < 1:
                slower.append(f"{each} ({ratio.median:.3f})")
    found["rows below plain"] = ", ".join(slower) or "none"
    if {1, 16} <= set(options.streams):
        for name in DRAFTERS:
            if measured.why_not(row(16, name)) or measured.why_not(row(1, name)):
                continue
            found[f"16 streams / 1 stream, {name} (goal {GOAL:g})"] = measured.ratio(row(16, name), row(1, name))
    for streams in options.cost_streams:
        for context in options.contexts:
            name = cell(streams, context)
            if name not in measured.batches:
                continue
            if reason := measured.why_not(name):
                found[name] = reason
            else:
                found[f"{name}, ms"] = measured.step_ms(name)
    return found | measured.figures()


def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--streams", type=counts, default=[1, 2, 4, 8, 16, 32], help="numbers of streams, comma-separated"
    )
    parser.add_argument(
        "--contexts",
        type=counts,
        default=[128, 512, 1024, 2048],
        help="context lengths, comma-separated; empty for none",
    )
    parser.add_argument(
        "--cost-streams", type=counts, default=[1, 4, 16], help="number of streams of the steps that are timed"
    )
    parser.add_argument("--prompt-tokens", type=int, default=64)
    add_pair_options(parser)
    add_run_options(parser, max_tokens=128)
    options = parser.parse_args()
    sys.exit(measure_and_report("scaling", run, figures, options))


if __name__ == "__main__":
    main()
