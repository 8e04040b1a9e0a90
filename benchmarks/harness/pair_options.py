"""Options for the inflated pair that benchmarks generate with: its sizes, cores, and how much to run."""

from __future__ import annotations

import argparse
import os

from benchmarks.harness.report import add_report_options

PAIRS = {"400M": (400.0, 25.0), "1.5B": (1500.0, 100.0)}
"""Sizes of targets and of their draft models, in millions of parameters, by name."""

FAMILIES = {"bundled": ("target", "draft"), "hybrid": ("hybrid-target", "hybrid-draft")}
"""The pairs in `models`, target first; the hybrid one has gated delta nets in three of four layers of its target."""


class _ChoosePair(argparse.Action):
    """Sets both sizes of a pair."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, values: object, flag: str | None = None
    ) -> None:
        setattr(options, self.dest, values)
        options.target_millions, options.draft_millions = PAIRS[str(values)]


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Adds --pair, --target-millions and --draft-millions; the one given last counts."""
    parser.add_argument(
        "--pair", choices=PAIRS, action=_ChoosePair, help="sizes of the inflated pair: 400 and 25, or 1500 and 100 M"
    )
    parser.add_argument(
        "--target-millions", type=float, default=400.0, help="parameters of the inflated target, in millions"
    )
    parser.add_argument(
        "--draft-millions", type=float, default=25.0, help="parameters of the inflated draft models, in millions"
    )


def add_family_option(parser: argparse.ArgumentParser) -> None:
    """Adds --family."""
    parser.add_argument("--family", choices=FAMILIES, default="bundled", help="the pair of models to use")


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for sizes and cores."""
    add_size_options(parser)
    parser.add_argument("--verifier-cores", type=cores, default=[0])
    parser.add_argument("--drafter-cores", type=cores, default=[1])


def add_run_options(parser: argparse.ArgumentParser, *, max_tokens: int, prompts: int | None = None) -> None:
    """Adds the options for how much to run. max_tokens, prompts: defaults; without `prompts` there is no such
    option."""
    if prompts is not None:
        parser.add_argument("--prompts", type=int, default=prompts, help="number of held-out prompts")
    parser.add_argument("--max-tokens", type=int, default=max_tokens)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--verbose", action="store_true", help="print every run")
    add_report_options(parser)


def counts(text: str) -> list[int]:
    """Parses comma-separated counts; returns none for an empty text."""
    return [int(number) for number in text.split(",")] if text else []


def cores(text: str) -> list[int]:
    """Parses core numbers such as 0,2; "any" means all cores of this process."""
    return sorted(os.sched_getaffinity(0)) if text == "any" else counts(text)


def pair_figures(options: argparse.Namespace) -> dict[str, object]:
    """Returns a report's description of the pair."""
    return {
        "pair": f"bundled, inflated: target {options.target_millions:g} M, drafts {options.draft_millions:g} M "
        "parameters, bfloat16, 1 thread each",
        "cores": f"verifying on {options.verifier_cores}, drafting on {options.drafter_cores}, the client on any",
    }
