"""How many tokens can the host's processors draft during one pass of an 8 B target on the GPU?

    python -m benchmarks.gpu.questions.08_host_drafters [--device cpu]

A chain by a draft model of the shape of Llama 3.2 1B on the host's cores, with bfloat16 and q8_0 weights and several
numbers of threads, while the GPU is idle and while it computes passes. The compiled library is built first if it is not
there, which needs a C compiler; without it products are torch's.

Expected with 16 cores beside an H200: 15 ms a token in bfloat16, 9 in q8_0, against 4.5 ms of a pass: half a token. The
GPU's passes are no longer for it.

If a token takes less than half a pass: drafters on the host are worth a place in `draftwire plan`. If passes become 5 %
longer: its threads must leave the core that launches them alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.models import shaped
from benchmarks.gpu.steps import rows_batch, seconds, synchronize
from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.model.packed_model import PackedModel

CONTEXT, TOY_CONTEXT = 512, 16
WEIGHTS: tuple[Weights, ...] = ("checkpoint", "q8_0")
_BUILD_SECONDS = 120


def token_milliseconds(draft: PackedModel, context: int, runs: int) -> float:
    """The median time of a pass of one row on the host."""
    slots = draft.pool.take(context + 1)
    batch = rows_batch(draft, slots, context, [5])
    taken = seconds(lambda: draft.forward(batch), draft.device, runs)
    draft.pool.give_back(slots)
    return 1e3 * statistics.median(taken)


def passes(target: PackedModel, context: int, ends: Event) -> list[float]:
    """The times of passes of one row, until the end."""
    slots = target.pool.take(context + 1)
    batch = rows_batch(target, slots, context, [5])
    found: list[float] = []
    with torch.inference_mode():
        while not ends.is_set():
            started = time.perf_counter()
            target.forward(batch)
            synchronize(target.device)
            found.append(time.perf_counter() - started)
    target.pool.give_back(slots)
    return found


def find(device: torch.device) -> Figures:
    """Times of drafted tokens by weights and threads, and of the target's passes."""
    cuda = device.type == "cuda"
    if cuda:
        command = [sys.executable, "-m", "draftwire_core.engine.kernels.build"]
        subprocess.run(command, stdout=sys.stderr, timeout=_BUILD_SECONDS, check=False)
    context, runs = (CONTEXT, 9) if cuda else (TOY_CONTEXT, 2)
    cores = os.cpu_count() or 1
    target = PackedModel(shaped("llama-8b" if cuda else "toy", device), context + 256, "target")
    target.capture_graphs()
    figures: dict[str, object] = {}
    for weights in WEIGHTS:
        model = shaped("llama-1b" if cuda else "toy", torch.device("cpu"))
        draft = PackedModel(model, context + 256, "draft", row_exact=False, weights=weights)
        name = "bfloat16" if weights == "checkpoint" else weights
        for threads in sorted({max(1, cores // 4), max(1, cores // 2), max(1, cores - 2)}) if cuda else [1]:
            torch.set_num_threads(threads)
            figures[f"{name}, {threads} threads: drafted token, ms"] = round(
                token_milliseconds(draft, context, runs), 3
            )
        with ThreadPoolExecutor(1) as thread:
            ends = Event()
            running = thread.submit(passes, target, context, ends)
            try:
                figures[f"{name}, beside passes: drafted token, ms"] = round(
                    token_milliseconds(draft, context, runs), 3
                )
            finally:
                ends.set()
            beside = running.result()
        figures[f"pass beside {name}: median ms"] = round(1e3 * statistics.median(beside), 3)
    batch = rows_batch(target, target.pool.take(context + 1), context, [5])
    alone = seconds(lambda: target.forward(batch), device, runs)
    return {"pass alone: median ms": round(1e3 * statistics.median(alone), 3), **figures}


if __name__ == "__main__":
    print_answer(__doc__, find)
