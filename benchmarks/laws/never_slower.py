"""Compares the speed next to useless, slow, stalled and lying drafters with plain decoding (law 3).

    python -m benchmarks.laws.never_slower [--batches 1,4,16] [--drafters bad,lying] [--runs 5] [--weights q4_0]
        [--json]

Held-out prompts are decoded greedily in batches, plainly and with each drafter in turn:

- good, bad, untrained: draft models, trained fully, hardly and not at all;
- slow: the good one, sleeping before each step;
- stalled: completes the handshake, answers pings, opens sequences and never proposes anything;
- lying: answers each verdict at once with random tokens, each with a claimed probability of 99 %.

Each is a drafter service on the drafters' core; only the measured one has work. Plain decoding takes part twice:
drafters are compared with the mean of both, and the difference between the two is the noise of a row. Rates cover the
time in which all requests of a batch decode. From a few tokens before the first run the verifier learns the value of
each drafter. The exit status is 1 if an output differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from typing import get_args

from benchmarks.harness.arrangements import Arrangement, Comparison, Measured, measure, measure_and_report
from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_pair_options, add_run_options, counts, pair_figures
from benchmarks.harness.services import DRAFTER, Services, started
from draftwire import AsyncClient, Speculation
from draftwire_core.engine.device.choices import TargetWeights
from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess

SHAPED = "benchmarks.harness.stand_ins.shaped_drafter"
DRAFTERS = {
    "good": ("draft", DRAFTER, ()),
    "bad": ("draft-early", DRAFTER, ()),
    "untrained": ("draft-untrained", DRAFTER, ()),
    "slow": ("draft", SHAPED, ("--sleep-ms",)),
    "stalled": ("draft", SHAPED, ("--instead", "stalled")),
    "lying": ("draft", SHAPED, ("--instead", "lying")),
}
"""By name: the model, the module to run, and its flags."""
PLAIN, CONTROL = "plain", "plain again"
GOAL = 0.97


async def run(options: argparse.Namespace, services: Services) -> Measured:
    """Runs the comparison."""
    slots = ("--kv-slots", str(max(options.batches) * (options.prompt_tokens + options.max_tokens + 64) + 4096))
    target, weights = inflated(MODELS / "target", options.target_millions), ("--weights", options.weights)

    def drafter(name: str) -> ServiceProcess:
        model, module, flags = DRAFTERS[name]
        if name == "slow":
            flags = (*flags, str(options.sleep_ms))
        draft = inflated(MODELS / model, options.draft_millions)
        return services.drafter(draft, *flags, *slots, cores=options.drafter_cores, module=module)

    (address,), drafters = await asyncio.gather(
        started([lambda: services.verifier(target, *slots, *weights, cores=options.verifier_cores)]),
        started([partial(drafter, name) for name in options.drafters]),
    )
    async with AsyncClient(address, timeout=600.0) as client:
        for name, place in zip(options.drafters, drafters, strict=True):
            await client.drafters.attach(place, name)
        texts = held_out_prompts(max(*options.batches, options.prompts))
        prompts = [(await client.tokenize(text))[: options.prompt_tokens] for text in texts]
        comparisons = []
        for size in options.batches:
            plain = row(size, PLAIN)
            arrangements = [Arrangement(plain, client, plain), Arrangement(row(size, CONTROL), client, plain)]
            arrangements += [
                Arrangement(row(size, name), client, plain, Speculation(drafter=name)) for name in options.drafters
            ]
            count = max(1, options.prompts // size)
            batches = [prompts[number * size : (number + 1) * size] for number in range(count)]
            comparisons.append(Comparison(arrangements, batches, options.max_tokens))
        return await measure(comparisons, options.runs, verbose=options.verbose)


def row(size: int, name: str) -> str:
    """Returns the name of an arrangement."""
    return f"batch {size}, {name}"


def figures(measured: Measured, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = pair_figures(options) | {
        "requests": f"{options.prompt_tokens} tokens of held-out prompts, {options.max_tokens} tokens more, greedy; "
        f"{options.prompts} prompts in batches of {options.batches}, at least one batch",
        "target's weights": "bfloat16" if options.weights == "checkpoint" else options.weights,
        "slow drafter": f"sleeps {options.sleep_ms:g} ms before each step",
    }
    ratios = {}
    for size in options.batches:
        plain, control = row(size, PLAIN), row(size, CONTROL)
        if reason := measured.why_not(plain) or measured.why_not(control):
            found[plain] = reason
            continue
        found[f"{plain}, tokens/s"] = measured.rate(plain)
        found[f"{control}, tokens/s"] = measured.rate(control)
        found[f"{control} / {PLAIN}"] = measured.ratio(control, plain)
        for name in options.drafters:
            each = row(size, name)
            if reason := measured.why_not(each):
                found[each] = reason
                continue
            ratios[each] = measured.ratio(each, plain, control)
            found[f"{each}, tokens/s"] = measured.rate(each)
            found[f"{each} / plain"] = ratios[each]
            found[f"{each}, speculation"] = (
                f"{measured.acceptance_length(each):.2f} tokens and {measured.nodes_per_step(each):.2f} draft tokens a "
                f"step, {measured.acceptance_rate(each):.0%} accepted"
            )
    below = [name for name, ratio in ratios.items() if ratio.median < GOAL]
    found[f"rows below {GOAL:g} of plain"] = ", ".join(below) or "none"
    return found | measured.figures()


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=counts, default=[1, 4, 16], help="batch sizes, comma-separated")
    parser.add_argument(
        "--drafters",
        type=lambda text: text.split(","),
        default=list(DRAFTERS),
        help="drafters to measure, comma-separated",
    )
    parser.add_argument(
        "--sleep-ms", type=float, default=100.0, help="milliseconds that the slow drafter sleeps before a step"
    )
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument(
        "--weights",
        choices=get_args(TargetWeights),
        default="checkpoint",
        help="the target's, as for the verifier",
    )
    add_pair_options(parser)
    add_run_options(parser, prompts=4, max_tokens=96)
    options = parser.parse_args()
    for name in options.drafters:
        if name not in DRAFTERS:
            parser.error(f"--drafters: there is no {name}, only {', '.join(DRAFTERS)}")
    sys.exit(measure_and_report("never_slower", run, figures, options))


if __name__ == "__main__":
    main()
