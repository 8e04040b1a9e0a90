"""Do keys and values of 8 bits change with the batch, and what do they save after long contexts?

    python -m benchmarks.gpu.questions.09_keys_of_8_bits [--device cpu]

The shape of Llama 3.1 8B with random weights and CUDA graphs, once with keys and values in bfloat16 and once in q8_0.
Passes of 1 and 16 rows of one sequence, and of one row of each of 16 sequences, after 512, 4096 and 32,768 tokens.

Expected on an H200: nothing is ruled out; a row has the same bits alone and among others; after 512 tokens both take
the same time within 3 %, after 32,768 tokens a pass of 16 sequences takes 0.65 of the time, since it mostly reads keys
and values, of which there are 0.53 times as many bytes.

If a bit differs: law 1 is broken, and `--kv-dtype q8_0` on GPUs is refused again. If passes after 32,768 tokens take
more than 0.85: the numbers are converted by more instructions than they save in reads; keys then go into products as
whole numbers, with scales applied to blocks of the sums. If it is below 0.7: docs/gpu.md recommends the type for long
contexts.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import get_args

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.models import SHAPES, shaped
from benchmarks.gpu.steps import batch_seconds, rows_batch, seconds
from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.model.packed_model import PackedModel

CONTEXTS, TOY_CONTEXTS = (512, 4096, 32_768), (40,)
_SEQUENCES = 16
_FEW = 2
"""Sequences in the rehearsal."""


def passes(model: PackedModel, context: int, sequences: int, runs: int) -> Figures:
    """Times of passes after a context, in milliseconds, and whether a row's bits depend on the rows after it."""
    slots = model.pool.take(context + sequences)
    found: dict[str, object] = {}
    logits = []
    for rows in (1, sequences):
        batch = rows_batch(model, slots, context, range(rows))
        logits.append(model.forward(batch)[0].clone())
        taken = seconds(partial(model.forward, batch), model.device, runs)
        found[f"{rows} rows, ms"] = round(1e3 * statistics.median(taken), 3)
    model.pool.give_back(slots)
    taken = batch_seconds(model, context, sequences, runs)
    found[f"{sequences} sequences, ms"] = round(1e3 * statistics.median(taken), 3)
    return {**found, "equal bits": torch.equal(*logits)}


def find(device: torch.device) -> Figures:
    """The figures of each type after each context."""
    cuda = device.type == "cuda"
    contexts, sequences, runs = (CONTEXTS, _SEQUENCES, 10) if cuda else (TOY_CONTEXTS, _FEW, 1)
    if not cuda:
        SHAPES["toy"] = {**SHAPES["toy"], "head_dim": 32}
    figures: dict[str, object] = {"equal bits": True}
    slots = sequences * (contexts[-1] + sequences + 1)
    for kv_dtype in [each for each in get_args(KvDtype) if each != "float16"]:
        model = PackedModel(shaped("llama-8b" if cuda else "toy", device), slots, kv_dtype=kv_dtype)
        model.capture_graphs()
        figures[f"{kv_dtype}: ruled out"] = model.ruled_out_shapes
        for context in contexts:
            for name, figure in passes(model, context, sequences, runs).items():
                if name == "equal bits":
                    figures[name] = figures[name] and figure
                else:
                    figures[f"{kv_dtype}: {name}, after {context} tokens"] = figure
        figures[f"{kv_dtype}: bytes of a KV slot"] = model.cache.bytes // (slots + 1)
        del model  # the next one needs its memory
    return figures


if __name__ == "__main__":
    print_answer(__doc__, find)
