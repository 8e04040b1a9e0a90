"""Measures what changes to the logits (penalties, biases, bans) cost a step on one CPU core.

    python -m benchmarks.speed.logit_changes [--rows 16] [--seen 1000] [--rounds 30]

All rows need the same change, either as one row of each of many sequences, or as the tree of one sequence. Each case is
timed once per round, cases interleaved, and the median over the rounds is printed. Times are the thread's own CPU time
(time.thread_time), since other work may share the machine. They include the copy of the logits that every step with a
change makes.
"""

import argparse
import platform
import random
import statistics
import time
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness.machine import cpu_name
from benchmarks.harness.results import add_results_option, save
from draftwire_core.engine.logits.logit_changes import NO_CHANGES, LogitChanges
from draftwire_core.engine.logits.logit_editor import LogitEditor, TreeRows
from draftwire_core.engine.logits.processors import editors_of
from draftwire_core.engine.sampling.coupled_sampler import SamplingBatch, sample
from draftwire_core.engine.sampling.sampling_params import SamplingParams

ALONE = TreeRows([-1], [-1])


def edit(logits: Tensor, sequences: list[tuple[LogitEditor, ...]], rows: TreeRows) -> None:
    """Edits the logits of one step: each sequence has its rows, one after another."""
    edited = logits.to(torch.float32, copy=True)
    for number, editors in enumerate(sequences):
        for editor in editors:
            editor.prepare(rows)
            editor.edit(edited[number * len(rows) : (number + 1) * len(rows)], rows)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seen", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=30)
    add_results_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{cpu_name()}, torch {torch.__version__}, Python {platform.python_version()}, threads=1")
    print(f"{options.rows} rows, {options.seen} tokens of text; medians of {options.rounds} rounds, ms of CPU a step")
    figures: dict[str, object] = {}
    for vocabulary in (4096, 131_072):
        rng = random.Random(0)
        prompt = rng.sample(range(vocabulary), options.seen)
        output = rng.choices(prompt, k=options.seen // 4)
        some = rng.sample(range(vocabulary), 200)
        penalties = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5}
        words = [rng.choices(range(vocabulary), k=3) for _ in range(200)]
        changes = {
            "none: the copy alone": NO_CHANGES,
            "penalties": LogitChanges(**penalties),
            "bias of 200 tokens": LogitChanges(logit_bias=dict.fromkeys(some, 1.0)),
            "200 tokens banned": LogitChanges(banned_token_ids=some),
            "200 tokens allowed": LogitChanges(allowed_token_ids=some),
            "200 bad words of 3 tokens": LogitChanges(bad_words=words),
            "least length": LogitChanges(min_tokens=10**6),
            "penalties, bias, banned, bad words": LogitChanges(
                **penalties, logit_bias=dict.fromkeys(some, 1.0), banned_token_ids=some, bad_words=words
            ),
        }
        logits = torch.randn(options.rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
        tree = TreeRows(
            [-1, *(max(0, row - 2) for row in range(1, options.rows))],
            [-1, *rng.choices(range(vocabulary), k=options.rows - 1)],
        )
        positions = range(options.rows)
        params = {"typical_p 1": SamplingParams(), "typical_p 0.9": SamplingParams(typical_p=0.9)}
        cases = {}
        for name, each in changes.items():
            many = [editors_of(each, prompt, output, [2, 3]) for _ in positions]
            cases[f"{name}, sequences"] = partial(edit, logits, many, ALONE)
            cases[f"{name}, a tree"] = partial(edit, logits, many[:1], tree)
        for name, param in params.items():
            cases[f"draw with {name}"] = partial(sample, logits, SamplingBatch.build([param] * options.rows, positions))
        times: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(options.rounds + 1):
            for name, case in cases.items():
                before = time.thread_time()
                case()
                if number:  # the first round warms up
                    times[name].append((time.thread_time() - before) * 1e3)
        print(f"\n{vocabulary} tokens")
        for name, found in times.items():
            print(f"  {name:48s} {statistics.median(found):8.2f}")
            figures[f"{vocabulary} tokens, {name}, ms"] = statistics.median(found)
    save(figures, options)


if __name__ == "__main__":
    main()
