"""Simulates speculation policies with the product's own decisions: any step times, round trips, agreement.

    python -m benchmarks.simulation.pipeline_sim [--target-ms 30] [--draft-ms 3] [--agreement 0.75]
        [--rtt 0 1 5 20 50 100 200]
    python -m benchmarks.simulation.pipeline_sim --validate FILE

The decisions what to verify, how long to wait and what to draft, and the learning, are those of the modules that the
services run (planner, acceptance model, timing, tree growth, proposals, trees). Clocks, the link and the two models'
tokens are simulated. The policies are plain decoding; a chain drafted, then verified (its best length of 1 to 10;
nothing is drafted while the verifier works); a chain drafted ahead (the product's growth at width 1); and a tree
drafted ahead (the product). There are two cost curves: flat, as on a GPU, and rising, as on a CPU. Finally, useless
drafters are compared with plain decoding.

--validate reads measured step times and agreement, and prints the simulated beside the measured tokens per second; the
exit status is 1 if one is more than 10 % off. The file:

    {"cases": [{
      "name": "two hosts, greedy",
      "target_ms": {"1": 30.0, "6": 33.1, "16": 41.0},   whole steps of the verifier by rows, including the time around
                                                         the forward pass; interpolated, extended by the last slope
      "draft_ms": {"1": 3.0, "8": 3.4},                  steps of the drafter
      "steps": {"draft_then_verify": {"target_ms": {...}, "draft_ms": {...}}, ...},   optional, for policies with other
                                                         step times: services that share memory slow each other down,
                                                         but not when they take turns
      "by_rank": [0.75, 0.13, 0.05],                     probability that the target's token is the draft's first,
                                                         second, third candidate after text of the target; or
      "texts": [[[0, [-0.1, -3.2, -4.0]], ...], ...],    by request and token, a draft model's predictions for a real
                                                         text: index of the right candidate, null if there is none,
                                                         and the candidates' natural log probabilities
      "concentration": 2.0,                              optional, see simulated_models.Agreement; "noise" likewise
      "round_trip_ms": 0.4,                              between the services, including waits of messages
      "tokens": 128, "requests": 20, "streams": 1,       new tokens of a request; requests one after another; at once
      "max_tree_nodes": 64,                              optional, most live nodes of a tree
      "draft_length": 5,                                 optional, for draft_then_verify; its best by default
      "measured": {"plain": 31.0, "draft_then_verify": 60.1, "chain_ahead": 66.0, "tree_ahead": 80.2}
    }]}                                                  tokens per second and stream after a first step; any subset
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness.machine import machine
from benchmarks.harness.report import add_report_options
from benchmarks.harness.results import save
from benchmarks.harness.simulated_models import Agreement
from benchmarks.harness.simulated_services import Tally
from benchmarks.simulation.simulated_setting import Curve, Setting, draft_then_verify, drafted_ahead, plain

_LENGTHS = range(1, 11)
"""Lengths of chains that are drafted, then verified."""
_DESIGN = {0: (33, 74, 79, 109), 5: (33, 66, 73, 104), 20: (33, 50, 65, 84), 50: (33, 34, 52, 64)}
"""Expectations of the design at 30 ms, 3 ms and 75 %, by round trip in ms."""
_POLICIES = ("plain", "draft_then_verify", "chain_ahead", "tree_ahead")
_CURVES: Mapping[str, Callable[[float], Curve]] = {"flat": Curve.flat, "cpu": Curve.cpu}
_TOLERANCE = 0.1


def speeds(
    settings: Mapping[str, Setting], seeds: Sequence[int], draft_length: int | None = None
) -> dict[str, list[float]]:
    """Returns the tokens per second of each policy, by seed.

    settings: by policy. draft_length: length of chains for draft_then_verify; the best one by default.
    """

    def of(name: str, policy: Callable[[Setting], Tally]) -> list[float]:
        return [policy(dataclasses.replace(settings[name], seed=seed)).tokens_per_second for seed in seeds]

    lengths = _LENGTHS if draft_length is None else [draft_length]
    chains = [of("draft_then_verify", partial(draft_then_verify, length=length)) for length in lengths]
    return {
        "plain": of("plain", plain),
        "draft_then_verify": max(chains, key=statistics.mean),
        "chain_ahead": of("chain_ahead", lambda each: drafted_ahead(each, width=1)),
        "tree_ahead": of("tree_ahead", drafted_ahead),
    }


def policy_table(options: argparse.Namespace, curve: str) -> list[dict[str, object]]:
    """Returns a row for each round trip."""
    make = _CURVES[curve]
    rows: list[dict[str, object]] = []
    for rtt in options.rtt:
        setting = Setting(
            make(options.target_ms / 1e3),
            make(options.draft_ms / 1e3),
            Agreement.of(options.agreement),
            rtt / 1e3,
            tokens=options.tokens,
            streams=options.streams,
            max_tree_nodes=options.max_tree_nodes,
        )
        found = speeds(dict.fromkeys(_POLICIES, setting), options.seeds)
        rows.append({"round_trip_ms": rtt, **{name: _spread(found[name]) for name in _POLICIES}})
    return rows


def useless_table(options: argparse.Namespace, curve: str) -> list[dict[str, object]]:
    """Returns the product's speed over plain decoding with useless drafters, a row for each round trip."""
    make = _CURVES[curve]
    drafters = {
        "agrees 2 %": (0.02, options.draft_ms),
        "as slow as the target": (options.agreement, options.target_ms),
        "ten times slower": (options.agreement, 10 * options.target_ms),
        "slow, agrees 2 %": (0.02, options.target_ms),
    }
    rows: list[dict[str, object]] = []
    for rtt in options.rtt:
        row: dict[str, object] = {"round_trip_ms": rtt}
        for name, (agreement, draft_ms) in drafters.items():
            setting = Setting(
                make(options.target_ms / 1e3),
                make(draft_ms / 1e3),
                Agreement.of(agreement),
                rtt / 1e3,
                tokens=options.tokens,
                streams=options.streams,
                max_tree_nodes=options.max_tree_nodes,
            )
            ratios = []
            for seed in options.seeds:
                each = dataclasses.replace(setting, seed=seed)
                ratios.append(drafted_ahead(each).tokens_per_second / plain(each).tokens_per_second)
            row[name] = _spread(ratios)
        rows.append(row)
    return rows


def validation(path: Path, seeds: Sequence[int]) -> list[dict[str, object]]:
    """Returns a row for each measured figure. Raises ValueError that names what is wrong in the file."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or not isinstance(content.get("cases"), list):
        raise ValueError(f"{path}: has no list `cases`")
    rows: list[dict[str, object]] = []
    for number, case in enumerate(content["cases"]):
        where = f"{path}: cases[{number}]"
        try:
            settings, measured = _read_case(case)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{where}: {what}") from error
        found = speeds(settings, seeds, case.get("draft_length"))
        for policy, figure in measured.items():
            simulated = statistics.mean(found[policy]) / settings[policy].streams
            rows.append(
                {
                    "case": case.get("name", str(number)),
                    "policy": policy,
                    "measured": figure,
                    "simulated": round(simulated, 2),
                    "simulated_over_measured": round(simulated / figure, 3),
                }
            )
    return rows


def _read_case(case: Mapping[str, object]) -> tuple[dict[str, Setting], dict[str, float]]:
    """Returns settings and measured figures, by policy."""
    known = {field.name for field in dataclasses.fields(Setting)}
    shape = {name: case[name] for name in ("concentration", "noise") if name in case}
    sizes = {name: case[name] for name in ("tokens", "requests", "streams", "max_tree_nodes") if name in case}
    others = {"name", "target_ms", "draft_ms", "steps", "by_rank", "texts", "round_trip_ms", "draft_length", "measured"}
    if unknown := set(case) - known - others - set(shape):
        raise ValueError(f"{', '.join(sorted(unknown))}: unknown")
    measured = {str(name): float(figure) for name, figure in case["measured"].items()}
    if wrong := [name for name, figure in measured.items() if name not in _POLICIES or figure <= 0]:
        raise ValueError(f"measured.{wrong[0]}: not a policy ({', '.join(_POLICIES)}), or not above 0")
    setting = Setting(
        _read_curve(case, "target_ms"),
        _read_curve(case, "draft_ms"),
        case["texts"] if "texts" in case else Agreement(tuple(case["by_rank"]), **shape),
        float(case["round_trip_ms"]) / 1e3,
        **sizes,
    )
    steps = case.get("steps", {})
    if wrong := sorted(set(steps) - set(_POLICIES)):
        raise ValueError(f"steps.{wrong[0]}: not a policy ({', '.join(_POLICIES)})")
    settings = {}
    for policy in _POLICIES:
        own = steps.get(policy, {})
        if unknown := sorted(set(own) - {"target_ms", "draft_ms"}):
            raise ValueError(f"steps.{policy}.{unknown[0]}: unknown")
        curves = {name.removesuffix("_ms"): _read_curve(own, name, f"steps.{policy}.") for name in own}
        settings[policy] = dataclasses.replace(setting, **curves)
    return settings, measured


def _read_curve(case: Mapping[str, object], name: str, where: str = "") -> Curve:
    try:
        points = sorted((int(rows), float(ms) / 1e3) for rows, ms in case[name].items())
        return Curve(tuple(rows for rows, _ in points), tuple(seconds for _, seconds in points))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}{name}: {error}") from error


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "low": round(min(values), 3),
        "high": round(max(values), 3),
    }


def _print_table(rows: Sequence[Mapping[str, object]], design: bool = False) -> None:
    """Prints rows as Markdown: medians with their range."""
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names))
    for row in rows:
        cells = []
        for name in names:
            value = row[name]
            if isinstance(value, dict):
                digits = 2 if value["median"] < 10 else 1
                text = f"{value['median']:.{digits}f} ({value['low']:.{digits}f} to {value['high']:.{digits}f})"
                if design and row["round_trip_ms"] in _DESIGN:
                    text += f"; {_DESIGN[row['round_trip_ms']][_POLICIES.index(name)]}"
                cells.append(text)
            else:
                cells.append(f"{value:g}" if isinstance(value, float) else str(value))
        print("| " + " | ".join(cells) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-ms", type=float, default=30.0, help="milliseconds of a target's step with one row")
    parser.add_argument("--draft-ms", type=float, default=3.0, help="milliseconds of a draft model's step with one row")
    parser.add_argument(
        "--agreement", type=float, default=0.75, help="probability that the draft's first token is right"
    )
    parser.add_argument(
        "--rtt", type=float, nargs="+", default=[0, 1, 5, 20, 50, 100, 200], help="round trips in milliseconds"
    )
    parser.add_argument("--tokens", type=int, default=1000, help="new tokens of a sequence")
    parser.add_argument("--streams", type=int, default=1, help="number of concurrent sequences")
    parser.add_argument("--max-tree-nodes", type=int, default=64, help="most live nodes of a tree")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--runs", type=int, default=5, help="number of runs, each with its own seed")
    parser.add_argument("--validate", type=Path, help="compare with measurements, see above")
    add_report_options(parser)
    options = parser.parse_args()
    if min(options.target_ms, options.draft_ms) <= 0 or options.runs < 1:
        parser.error("--target-ms, --draft-ms and --runs have to be above 0")
    options.seeds = range(options.seed, options.seed + options.runs)
    status = 0
    tables: dict[str, list[dict[str, object]]]
    try:
        if options.validate is not None:
            tables = {"validation": validation(options.validate, options.seeds)}
            ratios = [float(row["simulated_over_measured"]) for row in tables["validation"]]
            status = int(any(abs(ratio - 1) > _TOLERANCE for ratio in ratios))
        else:
            tables = {curve: policy_table(options, curve) for curve in _CURVES}
            tables |= {f"of no use, {curve}": useless_table(options, curve) for curve in _CURVES}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    save(tables, options)
    if options.json:
        unsaid = ("json", "results", "seeds", "validate")
        given = {name: value for name, value in vars(options).items() if name not in unsaid}
        json.dump(
            {"benchmark": "pipeline_sim", "machine": machine(), "settings": given, **tables}, sys.stdout, indent=2
        )
        print()
        return status
    given = f"{options.runs} seeds from {options.seed}; tokens per second"
    if options.validate is None:
        given = (
            f"target {options.target_ms:g} ms, draft {options.draft_ms:g} ms a row, agreement {options.agreement:g}, "
            f"{options.max_tree_nodes} nodes a tree, {options.streams} x {options.tokens} tokens, {given}"
        )
    print(f"commit {machine()['commit']}; {given}")
    usual = (options.target_ms, options.draft_ms, options.agreement, options.streams) == (30.0, 3.0, 0.75, 1)
    for title, rows in tables.items():
        print(f"\n{title}{'; after a semicolon: as designed' if usual and title == 'flat' else ''}\n")
        _print_table(rows, design=usual and title == "flat")
    return status


if __name__ == "__main__":
    sys.exit(main())
