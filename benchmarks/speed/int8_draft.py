"""Compares drafting with int8 weights with bfloat16: the time of a step, and how often both agree.

    python -m benchmarks.speed.int8_draft [--rows 1,4,16] [--draft-millions 25] [--target-millions 400] [--json]

Two models are measured as they are and in int8 (the drafter's `--weights int8`): the bundled draft, inflated, and the
inflated target, which in int8 may draft for itself. A step is one forward pass of --rows rows after a context of 128
tokens. Both types alternate; ratios are taken within each run.

Agreement covers all positions of held-out prompts: the share at which both types take the same greedy token, and the
share at which the draft model takes the target's, which determines acceptance.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import counts
from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

_CONTEXT = 128
_SLOTS = 2048
_KINDS: tuple[Weights, ...] = ("checkpoint", "int8")


def batch_of(model: PackedModel, context: np.ndarray, slots: np.ndarray, tokens: list[int]) -> PackedBatch:
    """Returns a batch of rows for `tokens` after a context, each with its logits."""
    builder = BatchBuilder()
    rows = [
        builder.add_row(token, len(context) + index, int(slot), True)
        for index, (token, slot) in enumerate(zip(tokens, slots, strict=True))
    ]
    builder.add_lane(context, rows)
    return builder.build(model.group_size, model.device)


def step_ms(models: dict[Weights, PackedModel], rows: int, runs: int) -> dict[Weights, list[float]]:
    """Returns the milliseconds of a step, run by run; the models alternate."""
    slots = {kind: model.pool.take(_CONTEXT + rows) for kind, model in models.items()}
    batches = {
        kind: batch_of(model, slots[kind][:_CONTEXT], slots[kind][_CONTEXT:], list(range(rows)))
        for kind, model in models.items()
    }
    times: dict[Weights, list[float]] = {kind: [] for kind in models}
    for run in range(-2, runs):  # the first ones warm up
        for kind in _KINDS if run % 2 else reversed(_KINDS):
            started = time.perf_counter()
            models[kind].forward(batches[kind])
            if run >= 0:
                times[kind].append(1e3 * (time.perf_counter() - started))
    for kind, model in models.items():
        model.pool.give_back(slots[kind])
    return times


def greedy(model: PackedModel, texts: list[list[int]]) -> torch.Tensor:
    """Returns the likeliest token after each token of each text: [tokens of all texts]."""
    found = []
    for text in texts:
        slots = model.pool.take(len(text))
        found.append(model.forward(batch_of(model, slots[:0], slots, text)).argmax(-1))
        model.pool.give_back(slots)
    return torch.cat(found)


def share(equal: torch.Tensor) -> float:
    """Returns the share of elements that are true."""
    return round(equal.float().mean().item(), 4)


@torch.inference_mode()
def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--draft-millions", type=float, default=25.0, help="parameters of the inflated draft model, in millions"
    )
    parser.add_argument(
        "--target-millions", type=float, default=400.0, help="parameters of the inflated target, in millions"
    )
    parser.add_argument("--rows", type=counts, default=[1, 4, 16])
    parser.add_argument("--runs", type=int, default=31)
    parser.add_argument("--prompts", type=int, default=20, help="number of held-out prompts")
    parser.add_argument("--threads", type=int, default=1)
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    texts = [tokenizer.encode(text) for text in held_out_prompts(options.prompts)]
    figures: dict[str, object] = {
        "models": f"bundled, inflated: draft {options.draft_millions:g} M, target {options.target_millions:g} M",
        "step": f"after {_CONTEXT} tokens, bfloat16 rows, {options.threads} threads; milliseconds",
    }
    said: dict[tuple[str, Weights], torch.Tensor] = {}
    for name, millions in (("draft", options.draft_millions), ("target", options.target_millions)):
        place = str(inflated(MODELS / name, millions))
        models = {
            kind: PackedModel.load(place, slots=_SLOTS, dtype="bfloat16", row_exact=False, weights=kind)
            for kind in _KINDS
        }
        for rows in options.rows:
            times = step_ms(models, rows, options.runs)
            for kind in _KINDS:
                figures[f"{name}, {rows} rows, {kind}"] = Spread.of(times[kind])
            figures[f"{name}, {rows} rows, int8 / checkpoint"] = Spread.ratio(times["int8"], times["checkpoint"])
        for kind, model in models.items():
            said[name, kind] = greedy(model, texts)
        equal = share(said[name, "int8"] == said[name, "checkpoint"])
        figures[f"{name}, same greedy tokens"] = f"{equal} of {len(said[name, 'int8'])}"
    for kind in _KINDS:
        figures[f"draft {kind}, the target's greedy tokens"] = share(
            said["draft", kind] == said["target", "checkpoint"]
        )
    print_report("int8_draft", figures, options)


if __name__ == "__main__":
    main()
