"""Measures translation between tokenizers: what a drafter's start takes, and what it drafts of a text known by heart.

    python -m benchmarks.speed.translation TOKENIZER TOKENIZER ... [--tokens 400] [--nodes 8] [--json]

For each ordered pair of tokenizers (directories or GGUF files) it reports the processor time and memory of the token
map and the projection, and for prose, code, Chinese, Japanese and Korean, and lists of figures the share of the
target's tokens that a draft model which knows the text by heart drafts rightly (tests/harness/engine/known_text.py).
The shares depend on no clock. Memory is read from /proc, so it needs Linux.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.token_projection import TokenProjection
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.engine.known_text import KnownTextDrafting
from tests.harness.engine.texts import TEXTS


def megabytes(field: str) -> float:
    """Returns a field of this process's memory: VmRSS, or VmHWM for the largest since `forget_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def forget_peak() -> None:
    """Makes the kernel take the present use of memory as the largest so far."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@torch.inference_mode()
def main() -> None:
    """Measures all pairs and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="+", help="directories with a tokenizer.json, or GGUF files; NAME=PATH")
    parser.add_argument("--tokens", type=int, default=400, help="most tokens of each text")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of a tree")
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    named = [each.partition("=")[::2] if "=" in each else (Path(each).name, each) for each in options.tokenizers]
    tokenizers = {name: Tokenizer.load(path) for name, path in named}
    figures: dict[str, object] = {}
    vocabularies = {}
    for name, tokenizer in tokenizers.items():
        started = time.process_time()
        vocabularies[name] = tokenizer.vocabulary()
        seconds = time.process_time() - started
        figures[name] = {"tokens": len(vocabularies[name]), "vocabulary_seconds": round(seconds, 2)}
    for target, ours in vocabularies.items():
        for draft, theirs in vocabularies.items():
            if target == draft:
                continue
            forget_peak()
            before, started = megabytes("VmRSS"), time.process_time()
            token_map = TokenMap(ours, theirs)
            TokenProjection(token_map, torch.device("cpu"))
            seconds, peak = time.process_time() - started, megabytes("VmHWM") - before
            right = {
                kind: round(KnownTextDrafting(token_map, tokens, nodes=options.nodes).share, 3)
                for kind, text in TEXTS.items()
                if (tokens := tokenizers[target].encode(text)[: options.tokens])
            }
            figures[f"{target} <- {draft}"] = {"seconds": round(seconds, 2), "peak_mb": round(peak), "right": right}
    print_report("translation", figures, options)


if __name__ == "__main__":
    main()
