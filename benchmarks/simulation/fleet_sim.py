"""Simulates fleets of verifiers and drafters: capacity, cost per token, tail latency under failures.

    python -m benchmarks.simulation.fleet_sim [--questions capacity,failures,sizes] [--pair FILE] [--json]
    python -m benchmarks.simulation.fleet_sim --calibrate FILE
    python -m benchmarks.simulation.fleet_sim --validate [--runs 3]

The draft tokens of a step come from small simulations with the services' own trees, planner and calibration, by load
and round trip; queues, prompts, batches, failures and swaps are simulated for the whole fleet. docs/many-verifiers.md
describes the model and its assumptions. Without --pair the models' times are assumed (--target-ms, --draft-ms,
--agreement); --calibrate writes those of the bundled pair, inflated, on this machine.

- capacity: the highest request rate at which 99 % of first tokens, and of later ones, come in time, by drafters per
  verifier (--ratios) and round trip, compared with no speculation and with a draft model on the target's accelerator.
- failures: tail latencies while drafters and verifiers fail, are swapped and restarted, at 70 % of the capacity.
- sizes: up to 100 verifiers and 1000 drafters, and the time that simulating them takes.

--validate runs small fleets of real services on two cores, calibrates on them, simulates the same fleets, and compares
tokens per second; the exit status is 1 if one is more than 15 % off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from benchmarks.harness.machine import machine
from benchmarks.harness.pair_options import add_pair_options
from benchmarks.harness.report import Spread, add_report_options
from benchmarks.harness.results import save
from benchmarks.simulation.fleet.capacity import Objective, Workload
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes, gpu_like, read, write
from benchmarks.simulation.fleet.prices import Prices
from benchmarks.simulation.fleet.questions import RATIOS, Questions, Row

_SIZES = ((1, 10), (10, 100), (100, 1000))
_QUESTIONS = ("capacity", "failures", "sizes")


def answers(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Returns a table for each question. Raises OSError, ValueError."""
    pair = read(options.pair) if options.pair else _assumed(options)
    questions = Questions(
        pair,
        Workload(options.prompt_tokens, options.max_tokens, options.lead, options.seconds, options.seed),
        Objective(options.first_token, options.between_tokens),
        Prices(options.verifier_price, options.drafter_price),
        options.places,
        options.step_rows,
        options.draft_memory,
        options.seed,
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    round_trips = [milliseconds / 1e3 for milliseconds in options.round_trips]
    found: dict[str, list[Row]] = {}
    if "capacity" in options.questions:
        found["capacity"] = questions.capacities(options.ratios, round_trips)
    if "failures" in options.questions:
        found["failures"] = questions.failures(options.verifiers, options.drafters, round_trips[0])
    if "sizes" in options.questions:
        found["sizes"] = questions.sizes(_SIZES, round_trips[0], 0.7)
    return found


async def calibrated(options: argparse.Namespace, validating: bool) -> tuple[ModelPairTimes, list[Row]]:
    """Measures on real services what a simulation needs; with `validating` also runs whole fleets and compares."""
    # imported here, so that questions need no models
    from benchmarks.harness.held_out import held_out_prompts
    from benchmarks.harness.inflated_models import inflated
    from benchmarks.harness.services import Services
    from benchmarks.simulation.fleet.calibration import calibrate
    from benchmarks.simulation.fleet.real_fleet import RealFleet
    from benchmarks.simulation.fleet.validation import cases, compare, measure
    from tests.harness.checkout import MODELS

    target = inflated(MODELS / "target", options.target_millions)
    draft = inflated(MODELS / "draft", options.draft_millions)
    name = f"bundled pair, inflated: {options.target_millions:g} M and {options.draft_millions:g} M parameters"
    with Services() as services:
        fleet = RealFleet(services, target, draft, (options.verifier_cores, options.drafter_cores))
        await fleet.start(2 if validating else 1, 2 if validating else 1)
        prompts = [ids[: options.real_prompt_tokens] for ids in await fleet.tokenize(held_out_prompts(options.prompts))]
        pair = await calibrate(fleet, draft, prompts, options.real_max_tokens, name)
        if not validating:
            return pair, []
        chosen = cases(options.killed_after)
        measured = await measure(fleet, chosen, prompts, options.real_max_tokens, options.runs)
    lengths = [(len(prompt), options.real_max_tokens) for prompt in prompts]
    return pair, [
        {
            "case": each.case.name,
            "measured, tokens/s": _spread(each.measured),
            "simulated, tokens/s": _spread(each.simulated),
            "simulated / measured": round(each.ratio, 3),
            "measured, tokens a step": "" if each.tokens_a_step is None else f"{each.tokens_a_step:.2f}",
            "simulated, tokens a step": f"{each.simulated_tokens_a_step:.2f}",
            "cores taken by others": f"{each.other_cores:.2f}",
        }
        for each in compare(pair, measured, lengths)
    ]


def _assumed(options: argparse.Namespace) -> ModelPairTimes:
    return gpu_like(options.target_ms / 1e3, options.draft_ms / 1e3, options.agreement)


def _spread(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"


def _table(rows: Sequence[Row]) -> str:
    """Formats rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def _ratios(text: str) -> list[Fraction]:
    """Parses ratios such as 1:8,1:1,8:1."""
    found = []
    for part in text.split(","):
        drafters, _, verifiers = part.partition(":")
        if not (drafters.isdigit() and verifiers.isdigit() and int(drafters) and int(verifiers)):
            raise argparse.ArgumentTypeError(f"expected drafters:verifiers, such as 1:8, got {part!r}")
        found.append(Fraction(int(drafters), int(verifiers)))
    return found


def _questions(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in _QUESTIONS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(_QUESTIONS)}")
    return chosen


def _milliseconds(text: str) -> list[float]:
    found = [float(number) for number in text.split(",")]
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"{min(found):g} ms is below 0")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--questions", type=_questions, default=list(_QUESTIONS), help="questions to answer, comma-separated"
    )
    parser.add_argument(
        "--pair", type=Path, help="times of two models, as --calibrate writes them; assumed ones by default"
    )
    parser.add_argument(
        "--target-ms", type=float, default=30.0, help="assumed milliseconds of a target's step with one row"
    )
    parser.add_argument(
        "--draft-ms", type=float, default=3.0, help="assumed milliseconds of a draft model's step with one row"
    )
    parser.add_argument(
        "--agreement", type=float, default=0.75, help="assumed probability that a first candidate is right"
    )
    parser.add_argument(
        "--ratios", type=_ratios, default=list(RATIOS), help="ratios drafters:verifiers, comma-separated"
    )
    parser.add_argument(
        "--round-trips", type=_milliseconds, default=[1, 5, 20, 50], help="round trips in milliseconds, comma-separated"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=512, help="prompt tokens of a simulated request, on average"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=256, help="tokens that a simulated request generates, on average"
    )
    parser.add_argument("--lead", type=float, default=15.0, help="virtual seconds that do not count")
    parser.add_argument("--seconds", type=float, default=30.0, help="virtual seconds that count")
    parser.add_argument(
        "--first-token", type=float, default=1.0, help="objective: seconds to the first token, for 99 %% of requests"
    )
    parser.add_argument(
        "--between-tokens", type=float, default=0.1, help="objective: seconds between tokens, for 99 %% of tokens"
    )
    parser.add_argument("--places", type=int, default=64, help="requests that run at once on a verifier")
    parser.add_argument("--step-rows", type=int, default=512, help="most rows of a verifier's step")
    parser.add_argument("--draft-memory", type=float, default=0.15, help="share of places lost to a co-located draft")
    parser.add_argument(
        "--verifier-price", type=float, default=Prices.verifier, help="price of a verifier's host per hour"
    )
    parser.add_argument(
        "--drafter-price", type=float, default=Prices.drafter, help="price of a drafter's host per hour"
    )
    parser.add_argument("--verifiers", type=int, default=8, help="verifiers of the fleet in which things fail")
    parser.add_argument("--drafters", type=int, default=8, help="drafters of that fleet")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="measure the bundled pair here and write FILE")
    parser.add_argument("--validate", action="store_true", help="compare with real services")
    parser.add_argument("--prompts", type=int, default=8, help="number of held-out prompts of real requests")
    parser.add_argument("--real-prompt-tokens", type=int, default=64)
    parser.add_argument("--real-max-tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=3, help="runs of each real fleet")
    parser.add_argument("--killed-after", type=float, default=1.5, help="seconds until the real verifier is killed")
    add_pair_options(parser)
    parser.set_defaults(target_millions=100.0, draft_millions=10.0)
    add_report_options(parser)
    return parser


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.target_ms <= 0 or options.draft_ms <= 0 or options.runs < 1:
        parser.error("--target-ms, --draft-ms and --runs have to be above 0")
    status = 0
    try:
        if options.calibrate is not None or options.validate:
            pair, rows = asyncio.run(calibrated(options, options.validate))
            if options.calibrate is not None:
                write(pair, options.calibrate)
            from benchmarks.simulation.fleet.validation import TOLERANCE

            status = int(any(abs(float(row["simulated / measured"]) - 1) > TOLERANCE for row in rows))
            tables = {pair.source: rows} if rows else {}
        else:
            tables = answers(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    given = {name: str(value) for name, value in vars(options).items() if name not in ("json", "results")}
    save(tables, options)
    if options.json:
        json.dump({"benchmark": "fleet_sim", "machine": machine(), "settings": given, **tables}, sys.stdout, indent=2)
        print()
        return status
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for title, rows in tables.items():
        print(f"\n{title}\n\n{_table(rows)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
