"""How much longer are a target's passes while a draft model is loaded onto the same GPU?

    python -m benchmarks.gpu.questions.07_loading [--device cpu]

Passes of one row at the shape of Llama 3.1 8B, in CUDA graphs, one after the other; meanwhile a thread makes a model of
the shape of Llama 3.2 1B on the device and captures its graphs, as a drafter in the verifier is swapped in.

Expected on an H200: a median of 4.5 ms before, 5 to 7 while the weights are filled, and single passes of up to 150 ms,
while graphs are captured: a capture holds Python's lock, and kernels that are compiled hold it longer.

If the longest pass is above 300 ms: captures are divided into parts between which passes run. If the median doubles:
copies go through a stream of low priority.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.models import LAYERS, packed, shaped
from benchmarks.gpu.steps import rows_batch, seconds, synchronize
from draftwire_core.engine.model.packed_model import PackedModel

CONTEXT, TOY_CONTEXT = 512, 16
_MOST_SECONDS = 120.0


def load(shape: str, device: torch.device, slots: int) -> float:
    """Makes a draft model and captures its graphs; returns the seconds."""
    started = time.perf_counter()
    with torch.inference_mode():
        draft = packed(shaped(shape, device), slots, "draft", LAYERS[0])
        draft.capture_graphs()
    return time.perf_counter() - started


def find(device: torch.device) -> Figures:
    """Times of passes before and during a load."""
    cuda = device.type == "cuda"
    context, runs = (CONTEXT, 50) if cuda else (TOY_CONTEXT, 5)
    target = PackedModel(shaped("llama-8b" if cuda else "toy", device), context + 256, "target")
    target.capture_graphs()
    slots = target.pool.take(context + 1)
    batch = rows_batch(target, slots, context, [5])
    before = seconds(lambda: target.forward(batch), device, runs)
    meanwhile: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(load, "llama-1b" if cuda else "toy", device, context + 256)
        while not loading.done() and sum(meanwhile) < _MOST_SECONDS:
            started = time.perf_counter()
            target.forward(batch)
            synchronize(device)
            meanwhile.append(time.perf_counter() - started)
        took = loading.result()
    return {
        "load: seconds": round(took, 2),
        "pass before: median ms": round(1e3 * statistics.median(before), 3),
        "pass meanwhile: median ms": round(1e3 * statistics.median(meanwhile or before), 3),
        "pass meanwhile: longest ms": round(1e3 * max(meanwhile or before), 3),
        "passes meanwhile": len(meanwhile),
    }


if __name__ == "__main__":
    print_answer(__doc__, find)
