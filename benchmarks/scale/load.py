"""Measures goodput, refusals and waits of one verifier from light load to twice its capacity.

    python -m benchmarks.scale.load [--loads 0.25,0.5,1,1.5,2] [--seconds 15] [--runs 3] [--quick] [--out DIR] [--json]

First the capacity with plain decoding is measured: requests per second with all places of the verifier taken. Then
requests arrive at random (a Poisson process) at multiples of that rate, whether or not earlier ones are done; in turns
without speculation ("off") and as the planner decides ("auto"), the same requests at the same times. Goodput is tokens
per second of requests that met their objective: a first token in time, and the others fast enough. It must not fall
when more is asked, and be no lower with drafters than without. At the end nothing may be left: KV slots, requests,
tasks, open files.

Writes load.json and load.png into a directory. The exit status is 1 if an output with drafters differs from the one
without, a request failed, a refusal did not say when to retry, or something was left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness.machine import machine
from benchmarks.harness.pair_options import add_pair_options, add_run_options, pair_figures
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services
from benchmarks.scale.load_plot import plot
from benchmarks.scale.load_run import KINDS, Idle, Load
from draftwire_tools.spread import Spread

_COLUMNS = {
    "goodput": "goodput, tokens/s",
    "completed": "completed",
    "refused": "refused",
    "refusal_seconds": "refused within (p99)",
    "first_token_median": "first token (p50)",
    "first_token_p99": "first token (p99)",
    "gap_p95": "between tokens (p95)",
}
_LABELS = {
    "requests": "requests",
    "goodput": "goodput, tokens/s",
    "completed": "completed, tokens/s",
    "refused": "share refused",
    "refusal_seconds": "99th percentile of the time until a refusal, s",
    "least_retry": "least RetryInfo, s",
    "first_token_median": "median time to the first token, s",
    "first_token_p99": "99th percentile of the time to the first token, s",
    "gap_p95": "95th percentile of the time between tokens, s",
    "lateness": "99th percentile of the client's lateness, s",
}


def figures(load: Load, options: argparse.Namespace) -> dict[str, object]:
    """Returns the figures to print."""
    found: dict[str, object] = pair_figures(options) | {
        "verifier": f"{options.places} places, a wait of {options.max_wait:g} s at most",
        "requests": f"prompts of {options.prompt_tokens} tokens, {options.max_tokens} more, from half to half as much "
        f"again, temperature {options.temperature:g}; for {options.seconds:g} s, without the first {options.lead:g}",
        "objective": f"a first token within {options.first_token:g} s, then {options.per_token:g} s a token",
        "served plainly, closed loop": f"{load.capacity:.3g} requests, {load.capacity_tokens:.0f} tokens a second",
    }
    for each in options.loads:
        for kind in KINDS:
            spreads = load.spreads(each, kind)
            for name, label in _LABELS.items():
                if name in spreads:
                    found[f"load {each:g}, {kind}: {label}"] = spreads[name]
        ratio = load.ratios(each)
        if ratio is not None:
            found[f"load {each:g}: goodput, auto / off"] = ratio
    for kind in KINDS:
        found[f"goodput at load {options.loads[-1]:g} over the best, {kind}"] = _kept(load, options, kind)
    first, last = load.idle[0], load.idle[-1]
    for name in Idle._fields:
        found[f"held while idle, {name}"] = f"{getattr(first, name)} at first, {getattr(last, name)} at last"
    found["faults"] = load.faults() or "none"
    return found


def table(load: Load, options: argparse.Namespace) -> str:
    """Returns the medians as a Markdown table, one line per load and kind."""
    lines = ["| load | | " + " | ".join(_COLUMNS.values()) + " |", "|---" * (len(_COLUMNS) + 2) + "|"]
    for each in options.loads:
        for kind in KINDS:
            spreads = load.spreads(each, kind)
            cells = [_cell(name, spreads[name].median) if name in spreads else "" for name in _COLUMNS]
            lines.append(f"| {each:g} | {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(name: str, value: float) -> str:
    if name == "refused":
        return f"{value:.0%}"
    if name in ("refusal_seconds", "gap_p95"):
        return f"{1e3 * value:.0f} ms"
    return f"{value:.2f} s" if name.startswith("first") else f"{value:.0f}"


def _kept(load: Load, options: argparse.Namespace, kind: str) -> str:
    medians = [load.spreads(each, kind)["goodput"].median for each in options.loads]
    return f"{medians[-1] / max(medians):.3f}" if max(medians) else "there was none"


def factors(text: str) -> list[float]:
    """Parses comma-separated multiples, ascending and above zero."""
    values = [float(number) for number in text.split(",")]
    if values != sorted(set(values)) or values[0] <= 0:
        raise argparse.ArgumentTypeError(f"must be ascending and above zero, got {text}")
    return values


def main() -> None:
    """Runs the loads, writes the files and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--loads",
        type=factors,
        default=[0.25, 0.5, 1.0, 1.5, 2.0],
        help="loads relative to the capacity, comma-separated",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of requests for each load and kind")
    parser.add_argument("--lead", type=float, default=4.0, help="seconds at the start of each load that do not count")
    parser.add_argument("--places", type=int, default=16, help="requests that run at once (--max-sequences)")
    parser.add_argument("--max-wait", type=float, default=2.0, help="the verifier's --max-wait-seconds")
    parser.add_argument("--kv-slots", type=int, default=0, help="the verifier's --kv-slots; 0 for twice what is needed")
    parser.add_argument("--first-token", type=float, default=4.0, help="objective: seconds to the first token")
    parser.add_argument("--per-token", type=float, default=0.25, help="objective: seconds per token after it")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=7, help="seed of the requests and their times")
    parser.add_argument("--quick", action="store_true", help="two loads, six seconds each, once, as a trial")
    parser.add_argument("--out", type=Path, help="where to write the files; default: a new temporary directory")
    add_pair_options(parser)
    add_run_options(parser, max_tokens=64)
    parser.set_defaults(target_millions=100.0, draft_millions=10.0, runs=3)
    options = parser.parse_args()
    if options.quick:
        options.loads, options.seconds, options.lead, options.runs = [0.5, 2.0], 6.0, 2.0, 1
    if options.lead >= options.seconds or options.lead < 0:
        parser.error(f"--lead {options.lead:g} leaves nothing of --seconds {options.seconds:g}")
    out = options.out or Path(tempfile.mkdtemp(prefix="draftwire-load-"))
    out.mkdir(parents=True, exist_ok=True)
    with Services() as services:
        load = Load(options, services)
        asyncio.run(load.run())
    found = figures(load, options)
    print_report("load", found, options)
    spreads = {(each, kind): load.spreads(each, kind) for each in options.loads for kind in KINDS}
    about = machine()
    plot(
        spreads, options.loads, list(KINDS), f"load, {found['pair']}\n{about['processor']}, {about['commit']}",
        out / "load.png",
    )  # fmt: skip
    plain = {name: asdict(value) if isinstance(value, Spread) else value for name, value in found.items()}
    (out / "load.json").write_text(json.dumps({"benchmark": "load", "machine": about, **plain}, indent=2) + "\n")
    (out / "load.md").write_text(table(load, options) + "\n")
    if not options.json:
        print(table(load, options))
    print(f"load.json, load.md and load.png are in {out}", file=sys.stderr)
    sys.exit(bool(load.faults()))


if __name__ == "__main__":
    main()
