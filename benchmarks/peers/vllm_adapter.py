"""Compares vLLM with a remote drafter (draftwire_vllm) with vLLM plain and with its own draft model.

    python -m benchmarks.peers.vllm_adapter [--prompts 4] [--runs 3] [--max-tokens 64] [--draft-tokens 3,5,8]
        [--temperatures 0,1] [--eager] [--json]

The bundled pair is inflated (models/inflate.py), bfloat16. vLLM for CPUs has its own environment, made at the first
run, and runs with its engine in one process. Held-out prompts are decoded one at a time; numbers of draft tokens are
tried on the first ones, and the best is measured. The contestants take turns from request to request. Above temperature
0 the remote drafter is also measured without coupled sampling, where it guesses the likeliest tokens.

one box    each contestant has all cores; the drafter is a separate service with one thread on the same cores.
two hosts  vLLM has one core, with or without its own draft model; the drafter has another one, as if it were another
           machine.

On CPUs vLLM's own speculation is correct at temperature 0 only (vllm-project/vllm#55005).
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_size_options
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from benchmarks.peers.catalogue import Method, Peer
from benchmarks.peers.comparison import Contestant, figures
from benchmarks.peers.contest import Arrangement, Contest
from benchmarks.peers.process import PeerBatch
from benchmarks.peers.vllm_environment import prepare, vllm_environment, vllm_variables
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

_PLAIN, _REMOTE, _UNCOUPLED = "vLLM plain", "vLLM remote drafter", "vLLM remote drafter, not coupled"


@dataclass(frozen=True)
class AdaptedVllm(Peer):
    """vLLM with its engine in the process, and a drafter that it can call."""

    drafter: str = ""
    """Address of the drafter, HOST:PORT."""

    def variables(self, threads: int, cores: list[int]) -> dict[str, str]:
        """Returns the environment variables of its processes."""
        assert self.environment is not None
        own = vllm_variables(self.environment, ",".join(map(str, cores)))
        return own | {"DRAFTWIRE_VLLM_DRAFTER": self.drafter, "DRAFTWIRE_VLLM_LISTEN": "127.0.0.1:0"}


def _vllm(drafter: str, lengths: Sequence[int], eager: bool, temperature: float) -> Peer:
    compiled: dict[str, object] = {"enforce_eager": True} if eager else {}
    if temperature:
        compiled["temperature"] = temperature
    remote = tuple(
        compiled | {"method": "custom_class", "model": "draftwire_vllm.RemoteDrafter", "num_speculative_tokens": length}
        for length in lengths
    )
    own = tuple(compiled | {"method": "draft_model", "num_speculative_tokens": length} for length in lengths)
    lookup = tuple(
        compiled | {"method": "ngram", "num_speculative_tokens": length, "prompt_lookup_max": 4} for length in lengths
    )
    methods = [Method("plain", (compiled,)), Method("remote drafter", remote)]
    if temperature:  # vLLM's own speculation is not correct there
        methods.append(Method("remote drafter, not coupled", tuple(each | {"coupled": False} for each in remote)))
    else:
        methods += [Method("draft model", own), Method("n-gram", lookup)]
    return AdaptedVllm(
        "vLLM",
        "benchmarks.peers.runners.run_vllm",
        tuple(methods),
        vllm_environment(),
        process_per_method=True,
        load_settings=None,
        pauses=False,  # the drafter's streams have deadlines; idle it computes nothing
        drafter=drafter,
    )


def _acceptance(contestants: Sequence[Contestant]) -> dict[str, object]:
    """Returns how well drafts of the remote drafter were accepted, and the ratio of both ways to draw tokens."""
    measured = {each.name: each.runs for each in contestants if each.name in (_REMOTE, _UNCOUPLED) and not each.failure}
    rates = {name: [_rate(run) for run in runs] for name, runs in measured.items()}
    found: dict[str, object] = {f"{name}, acceptance rate": Spread.of(values) for name, values in rates.items()}
    for name, runs in measured.items():
        lengths = [sum(len(each.token_ids[0]) for each in run) / sum(len(each.held) for each in run) for run in runs]
        found[f"{name}, acceptance length"] = Spread.of(lengths)
    if len(rates) == 2:
        found["acceptance rate, coupled / not coupled"] = Spread.ratio(rates[_REMOTE], rates[_UNCOUPLED])
    return found


def _rate(run: Sequence[PeerBatch]) -> float:
    return sum(each.accepted for each in run) / max(1, sum(each.drafted for each in run))


def _held(contestants: Sequence[Contestant]) -> dict[str, object]:
    """Returns how long a call of the remote proposer keeps the engine, the median of each run."""
    remote = next(each for each in contestants if each.name == _REMOTE)
    runs = [[1e3 * each for timing in timings for each in timing.held] for timings in remote.runs]
    if remote.failure is not None or not all(runs):
        return {}
    return {
        "proposing keeps the engine, median, ms": Spread.of([statistics.median(run) for run in runs]),
        "proposing keeps the engine, longest, ms": Spread.of([max(run) for run in runs]),
    }


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_size_options(parser)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument(
        "--choosing-prompts", type=int, default=1, help="number of prompts that draft lengths are chosen on"
    )
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--draft-tokens", default="3,5,8", help="numbers of draft tokens per request and step to try, comma-separated"
    )
    parser.add_argument("--temperatures", default="0,1", help="temperatures of the requests, comma-separated")
    parser.add_argument("--setting", choices=("one box", "two hosts", "both"), default="both")
    parser.add_argument(
        "--eager", action="store_true", help="run vLLM without compiling, which takes minutes per process"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of vLLM on one box")
    add_report_options(parser)
    options = parser.parse_args()
    models = {
        "target": str(inflated(MODELS / "target", options.target_millions)),
        "draft": str(inflated(MODELS / "draft", options.draft_millions)),
    }
    prepare()
    tokenizer = Tokenizer.from_file(str(Path(models["target"]) / "tokenizer.json"))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in held_out_prompts(options.prompts)]
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, object] = {
        "pair": f"bundled, inflated to {options.target_millions:g} M and {options.draft_millions:g} M, bfloat16",
        "requests": f"{options.prompts} held-out prompts, {options.max_tokens} tokens, one at a time",
        "versions": ", ".join(f"{name} {each}" for name, each in vllm_environment().versions.items()),
    }
    for arrangement in (
        Arrangement("one box", options.threads, cores, cores),
        Arrangement("two hosts", 1, cores[:1], cores[-1:]),
    ):
        if options.setting not in (arrangement.name, "both"):
            continue
        for temperature in map(float, options.temperatures.split(",")):
            with Services() as services, Contest(arrangement, models, prompts, options.max_tokens) as contest:
                drafter = services.drafter(
                    Path(models["draft"]), "--dtype", "bfloat16", cores=arrangement.drafter_cores
                )
                lengths = [int(each) for each in options.draft_tokens.split(",")]
                peer = _vllm(drafter.address, lengths, options.eager, temperature)
                for method in peer.methods:
                    contest.enter(peer, method, prompts[: options.choosing_prompts])
                for number in range(options.runs):
                    contest.run(number)
                took_part = contest.contestants
                measured = figures(took_part, _PLAIN, _REMOTE) | _held(took_part) | _acceptance(took_part)
            if temperature:  # coupled sampling draws other tokens than vLLM's own
                measured = {name: value for name, value in measured.items() if not name.endswith(", outputs")}
            place = f"{arrangement.name}, T = {temperature:g}" if temperature else arrangement.name
            found |= {f"{place}: {name}": value for name, value in measured.items()}
    print_report("vllm_adapter", found, options)


if __name__ == "__main__":
    main()
