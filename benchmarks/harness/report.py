"""The report of a benchmark: its figures, medians with their spread, beside the machine, versions and commit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import NoReturn

from benchmarks.harness.machine import machine
from benchmarks.harness.results import add_results_option, save
from draftwire_tools.spread import Spread


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Adds --json and --results."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_results_option(parser)


def print_report(
    title: str, figures: dict[str, object], options: argparse.Namespace, *, printed: Collection[str] = ()
) -> None:
    """Prints the figures with the machine, versions and commit, and saves them if `options` say so
    (add_report_options).

    printed: names of figures that the script has printed as text already.
    """
    about = machine()
    save(figures, options)
    if options.json:
        plain = {name: asdict(value) if isinstance(value, Spread) else value for name, value in figures.items()}
        json.dump({"benchmark": title, "machine": about, **plain}, sys.stdout, indent=2)
        print()
        return
    print(title)
    print("  " + ", ".join(f"{name} {value}" for name, value in about.items()))
    for name, value in figures.items():
        if name not in printed:
            print(f"  {name}: {value}")


def end_with_faults(
    name: str, figures: dict[str, object], faults: Sequence[str], options: argparse.Namespace
) -> NoReturn:
    """Reports a fuzzer's figures and its first faults. Raises SystemExit: status 1 if there is a fault, else 0."""
    print_report(name, figures, options)
    for fault in faults[:20]:
        print(fault[:2000], file=sys.stderr)
    sys.exit(1 if faults else 0)
