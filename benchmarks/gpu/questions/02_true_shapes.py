"""What do a pass, a draft step and the host take at the true shapes of Llama 3.1 8B and Llama 3.2 1B?

    python -m benchmarks.gpu.questions.02_true_shapes [--device cpu]

Random weights, CUDA graphs, one sequence after 512 tokens. The device's part of a pass is between two events around it;
what an engine step takes beyond is the host's.

Expected on an H200: of the 8 B model 4.5 ms on the device and 5.2 to 5.8 a step; of the 1 B model 0.8 ms on the device,
where reading its weights takes 0.6, and 1.0 ms a drafted token (1.76 at the odd shape of the inflated pair).

If the host's part of a step is above 15 %: two steps in flight come next. If a drafted token takes above 1.2 ms: trim
`DraftBatch.fill`, and have drafts read the slots' tables as targets do. If the 1 B model's device time is above 1.0 ms:
its products' shapes (benchmarks.gpu.product_shapes).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.models import LAYERS, packed, shaped
from benchmarks.gpu.steps import Generator, rows_batch, seconds, synchronize
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams

CONTEXT, TOY_CONTEXT = 512, 16
STEPS_AHEAD = 4
_ROWS = (1, 8, 64)


def device_milliseconds(run: Callable[[], object], device: torch.device, runs: int) -> float:
    """The median time between two events around a call; on CPUs that of the call."""
    if device.type != "cuda":
        return 1e3 * statistics.median(seconds(run, device, runs))
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize(device)
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def pass_figures(name: str, model: PackedModel, context: int, runs: int) -> Figures:
    """Passes of some rows, and an engine's steps of one sequence."""
    figures: dict[str, object] = {f"{name}: layer kernels": model.layer_kernels, f"{name}: graphs": model.graphs}
    slots = model.pool.take(context + max(_ROWS))
    for rows in _ROWS:
        batch = rows_batch(model, slots, context, range(rows))
        figures[f"{name}: pass of {rows} rows, device ms"] = round(
            device_milliseconds(lambda batch=batch: model.forward(batch), model.device, runs), 3
        )
        taken = seconds(lambda batch=batch: model.forward(batch), model.device, runs)
        figures[f"{name}: pass of {rows} rows, ms"] = round(1e3 * statistics.median(taken), 3)
    model.pool.give_back(slots)
    prompt = [3 + at % 97 for at in range(context)]
    run = Generator(model, StepCost([1], [1.0])).run([prompt], runs + 8, 0.0)
    on_device = figures[f"{name}: pass of 1 rows, device ms"]
    assert isinstance(on_device, float)
    step = 1e3 * run.step_seconds
    return {
        **figures,
        f"{name}: engine step, ms": round(step, 3),
        f"{name}: host's share of a step": round(1 - on_device / step, 3),
        f"{name}: plain tokens/s": round(run.tokens_per_second, 1),
    }


def drafted_milliseconds(model: PackedModel, context: int, runs: int) -> float:
    """The median time of a drafted token, of a chain of STEPS_AHEAD by one call."""
    drafter = DraftModelDrafter(model, TreeGrowth(width=1, credit_worth=0.0))
    times = []
    for number in range(runs):
        tokens = np.random.default_rng(number).integers(model.vocab_size, size=context).tolist()
        drafter.open(number, DraftSpec(tokens, SamplingParams(temperature=0.0), STEPS_AHEAD + 8, context + 64))
        drafter.grow(1)
        while drafter.catching_up:
            drafter.grow(1)
        synchronize(model.device)
        started = time.perf_counter()
        drafter.grow(STEPS_AHEAD)
        synchronize(model.device)
        times.append(1e3 * (time.perf_counter() - started) / STEPS_AHEAD)
        drafter.close(number)
    return statistics.median(times)


def find(device: torch.device) -> Figures:
    """The times of both models, one after the other."""
    cuda = device.type == "cuda"
    context, runs = (CONTEXT, 20) if cuda else (TOY_CONTEXT, 2)
    slots = context + 256
    target = PackedModel(shaped("llama-8b" if cuda else "toy", device), slots, "llama-8b")
    target.capture_graphs()
    figures = dict(pass_figures("llama-8b", target, context, runs))
    del target
    draft = packed(shaped("llama-1b" if cuda else "toy", device), slots, "llama-1b", LAYERS[0])
    draft.capture_graphs()
    drafted = round(drafted_milliseconds(draft, context, runs), 3)
    return {**figures, **pass_figures("llama-1b", draft, context, runs), "llama-1b: drafted token, ms": drafted}


if __name__ == "__main__":
    print_answer(__doc__, find)
