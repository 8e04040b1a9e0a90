"""Measures what coupled sampling costs on one CPU core: 16 rows of a vocabulary of 152 k tokens.

    python -m benchmarks.speed.noise_cost [--rows 16] [--vocabulary 151936] [--rounds 30]

Each case is timed once per round, cases interleaved, and the median over the rounds is printed. Times are the thread's
own CPU time (time.thread_time), since other work may share the machine; wall time is printed beside it.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.machine import cpu_name
from benchmarks.harness.results import add_results_option, save
from draftwire_core.engine.sampling.coupled_sampler import SamplingBatch, sample, top_candidates
from draftwire_core.engine.sampling.gumbel import block_maxima
from draftwire_core.engine.sampling.philox import philox4x32
from draftwire_core.engine.sampling.sampling_params import SamplingParams


def naive_sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Samples with noise for every id, the obvious way: one Philox word and two logarithms per id."""
    quads = torch.arange((logits.shape[1] + 3) // 4)
    zero = torch.zeros((), dtype=torch.int64)
    words = philox4x32((quads, batch.positions[:, None], zero, zero), (batch.seeds[:, None], zero))
    bits = torch.stack(words, dim=-1).flatten(1)[:, : logits.shape[1]]
    noise = bits.double().add_(0.5).mul_(2.0**-32).log_().neg_().log_().neg_().float()
    return (logits / batch.temperatures + noise).argmax(1)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--rounds", type=int, default=30)
    add_results_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, vocabulary = options.rows, options.vocabulary
    print(f"{cpu_name()}, torch {torch.__version__}, Python {platform.python_version()}, threads=1")
    print(
        f"{rows} rows x {vocabulary} float32 logits; medians of {options.rounds} interleaved rounds, ms of CPU (wall)"
    )

    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(rows, vocabulary, generator=generator)
    shapes = {"flat, sd 1": normal, "middling, sd 3": normal * 3, "peaked, sd 12": normal * 12}

    def batch_of(**fields: Any) -> SamplingBatch:
        return SamplingBatch.build([SamplingParams(seed=i, **fields) for i in range(rows)], range(rows))

    plain = batch_of()
    parameters = {
        "sample, greedy (reads the logits)": batch_of(temperature=0),
        "sample, T=1": plain,
        "sample, T=1, top_k=50": batch_of(top_k=50),
        "sample, T=1, top_k=50, top_p=0.95": batch_of(top_k=50, top_p=0.95),
        "sample, T=1, min_p=0.05": batch_of(min_p=0.05),
        "sample, T=1, top_p=0.95": batch_of(top_p=0.95),
    }
    figures: dict[str, object] = {}
    for shape, logits in shapes.items():
        cases: dict[str, Callable[[], object]] = {
            name: partial(sample, logits, batch) for name, batch in parameters.items()
        }
        cases["block maxima of the noise alone"] = partial(
            block_maxima, plain.seeds, plain.positions, (vocabulary + 63) // 64
        )
        cases["top_candidates, k=8, T=1"] = partial(top_candidates, logits, plain, 8)
        cases["naive: noise for every id"] = partial(naive_sample, logits, plain)
        cpu: dict[str, list[float]] = {name: [] for name in cases}
        wall: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(options.rounds + 1):
            for name, case in cases.items():
                if name.startswith("naive") and number > 5:
                    continue
                before, wall_before = time.thread_time(), time.perf_counter()
                case()
                if number:  # the first round warms up
                    cpu[name].append((time.thread_time() - before) * 1e3)
                    wall[name].append((time.perf_counter() - wall_before) * 1e3)
        print(f"\n{shape}")
        for name in cases:
            print(f"  {name:36s} {statistics.median(cpu[name]):8.2f} ({statistics.median(wall[name]):.2f})")
        noise = statistics.median(cpu["sample, T=1"]) - statistics.median(cpu["sample, greedy (reads the logits)"])
        print(f"  {'what noise adds to greedy':36s} {noise:8.2f}")
        figures |= {f"{shape}: {name}, ms": statistics.median(times) for name, times in cpu.items()}
        figures[f"{shape}: what noise adds to greedy, ms"] = noise
    save(figures, options)


if __name__ == "__main__":
    main()
