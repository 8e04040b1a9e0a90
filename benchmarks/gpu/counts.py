"""Counts without a GPU what the kernels' passes and steps ask of one: launches, copies, waits, bytes sent.

    TRITON_INTERPRET=1 python -m benchmarks.gpu.counts [--parts kernels,steps,drafts,ranks,slots]

The engine runs tiny models on a pretended GPU, whose tensors are on the CPU and whose kernels Triton interprets. Counts
do not depend on a model's width, so they are those of a real GPU. The part "slots" also times, in this machine's
processor, what the host does before a pass; it says nothing of GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from benchmarks.gpu.figure_log import FigureLog, Figures
from benchmarks.gpu.steps import milliseconds
from benchmarks.harness.machine import machine
from benchmarks.harness.report import add_report_options
from benchmarks.harness.results import save
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.kv.kv_slots import SlotList
from draftwire_core.engine.model.cuda.slots.slot_batch import BatchRoom, SlotBatch, most_seen
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout
from draftwire_core.engine.model.cuda.slots.slot_tables import SlotTables
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.checkout import ROOT
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    engine_of,
    generate,
    random_tokens,
    specs_of,
    tiny_model,
)
from tests.harness.engine.pretended_gpu import PretendedGpu, pretended_gpu, to_gpu
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

ARCHITECTURES = ("Llama", "Qwen3", "Gemma2")
SIZES = ((1, 512), (1, 32_000), (16, 1000), (64, 1000))
"""Sequences and their contexts whose numbers are sent."""
_LAYERS = 32
_RESULTS_KEPT = 2
"""Launches after a pass, which keep logits and states from the next one."""
_RUNS = 50
_CPU = torch.device("cpu")
Result = TypeVar("Result")


def on_gpu(name: str, layers: int, *, target: bool, slots: int = 400) -> PackedModel:
    """A tiny model on the pretended GPU."""
    made = tiny_model(name, torch.float16, num_hidden_layers=layers)
    to_gpu(made)
    model = PackedModel(made, slots, row_exact=target)
    assert model.layer_kernels == "yes"
    return model


def kernel_figures(gpu: PretendedGpu) -> Iterator[Figures]:
    """Kernels of a pass of two rows, by architecture."""
    for name in ARCHITECTURES:
        of_layers = {layers: kernels_of_a_pass(gpu, on_gpu(name, layers, target=False)) for layers in (2, 4)}
        each = (of_layers[4] - of_layers[2]) // 2
        others = of_layers[2] - 2 * each
        yield {
            f"{name}: kernels a layer": each,
            f"{name}: kernels beside layers": others,
            f"{name}: kernels of a pass of {_LAYERS} layers": _LAYERS * each + others,
        }


def kernels_of_a_pass(gpu: PretendedGpu, model: PackedModel) -> int:
    """Launches of a pass that is not captured, without those that keep its results."""
    for _ in range(2):  # the first makes the cache
        builder = BatchBuilder()
        slots = model.pool.take(2)
        builder.add_lane(slots[:0], [builder.add_row(9, at, int(slot), True) for at, slot in enumerate(slots)])
        with gpu.counted() as count:
            model.forward(builder.build(model.group_size, model.device))
        model.pool.give_back(slots)
    return count["launches"] - _RESULTS_KEPT


def step_figures(gpu: PretendedGpu) -> Iterator[Figures]:
    """What steps of the engine ask of the device, by kind; the most of any step."""
    model = on_gpu("Llama", 1, target=True)
    model.capture_graphs()
    assert model.captured
    filtered = [SamplingParams(top_p=0.9, seed=1), SamplingParams(top_k=5, temperature=0.8, seed=2)]
    sampled = [GREEDY, SamplingParams(temperature=0.8, seed=1)]
    prompts = [random_tokens(5, seed=1), random_tokens(3, seed=2)]
    plain = generate(engine_of(model), specs_of(prompts, 6, sampled)).tokens
    for name, samplings, drafter in (
        ("plain", sampled, None),
        ("drafted", sampled, ScriptedDrafter(plain)),
        ("top-k and top-p", filtered, None),
    ):
        engine = engine_of(model)
        counts: list[Counter[str]] = []
        engine.step = counting(gpu, engine.step, counts)  # type: ignore[method-assign]
        found = generate(engine, specs_of(prompts, 6, samplings), drafter)
        assert name != "drafted" or found.tokens == plain
        yield {f"a step, {name}": most(counts)}
    engine = engine_of(model)
    engine.step = counting(gpu, engine.step, counts := [])  # type: ignore[method-assign]
    generate(engine, specs_of([random_tokens(62, seed=1)], 5, GREEDY))
    yield {"a step that enters a further tile of committed tokens": most(counts)}


def counting(gpu: PretendedGpu, call: Callable[[], Result], counts: list[Counter[str]]) -> Callable[[], Result]:
    """`call`, with what it asks of the device appended to `counts`."""

    def run() -> Result:
        with gpu.counted() as count:
            result = call()
        counts.append(count)
        return result

    return run


def most(counts: list[Counter[str]]) -> dict[str, int]:
    """The most of each kind."""
    return {name: max(count[name] for count in counts) for name in sorted(set().union(*counts))}


def draft_figures(gpu: PretendedGpu) -> Iterator[Figures]:
    """What drafting by a draft model asks of the device: several steps by one call, and single ones."""
    model = on_gpu("Llama", 1, target=False)
    model.capture_graphs()
    drafter = DraftModelDrafter(model, TreeGrowth(width=1, credit_worth=0.0))
    for number in range(2):
        drafter.open(number, DraftSpec(random_tokens(5, seed=number), GREEDY, 12, 100))
    drafter.grow(1)  # reads the prompts
    for steps in (4, 1):
        with gpu.counted() as count:
            drafter.grow(steps)
        yield {f"drafting {steps} tokens of each sequence": dict(sorted(count.items()))}


def rank_figures(_: PretendedGpu) -> Iterator[Figures]:
    """What a step asks of the devices of two ranks."""
    with tempfile.TemporaryDirectory() as place:
        tiny_model("Llama", num_hidden_layers=1).save_pretrained(place)
        command = [sys.executable, "-m", "tests.harness.engine.rank_graphs", place, place]
        subprocess.run(command, cwd=ROOT, env=os.environ, check=True, stdout=subprocess.DEVNULL)
        for rank, name in enumerate(("rank 0", "another rank")):
            found = json.loads(Path(place, f"{rank}.json").read_text())["counts"]
            yield {f"a step of {name}": most([Counter(each) for each in found])}


def slot_figures(_: PretendedGpu) -> Iterator[Figures]:
    """Bytes and the host's time of a plain step's numbers, with the slots of contexts listed and with tables."""
    for sequences, context in SIZES:
        slots = np.random.default_rng(1).permutation(np.arange(1, sequences * (context + 64) + 1))
        owners = [SlotList() for _ in range(sequences)]
        for owner, own in zip(owners, np.split(slots[: sequences * context], sequences), strict=True):
            owner.extend(own)
        tables = SlotTables(most_seen(len(slots)), _CPU)
        fixed = SlotBatch(BatchRoom.of_step(sequences, most_seen(len(slots))), _CPU, tables.tensor)
        sent: dict[str, int] = {}
        times: dict[str, list[float]] = {"listed": [], "tables": []}
        filled(fixed, plain_step(owners, slots), tables)
        tables.move(fixed.numbers, fixed.first_move, fixed.moves)
        for _ in range(_RUNS):
            for name, known in (("listed", None), ("tables", tables)):
                batch = plain_step(owners, slots)
                started = time.thread_time()
                sent[name] = filled(fixed, batch, known)
                times[name].append(time.thread_time() - started)
        for name, taken in times.items():
            yield {
                f"{sequences} x {context} tokens, {name}: bytes of a step": sent[name],
                f"{sequences} x {context} tokens, {name}: ms to lay out and fill": milliseconds(taken),
            }


def plain_step(owners: list[SlotList], slots: np.ndarray) -> PackedBatch:
    """A step of one row of each sequence."""
    builder = BatchBuilder()
    for number, owner in enumerate(owners):
        row = builder.add_row(9, len(owner), int(slots[-1 - number]), True)
        builder.add_lane(owner.array(), [row], owner=owner)
    return builder.build(4, _CPU)


def filled(fixed: SlotBatch, batch: PackedBatch, tables: SlotTables | None) -> int:
    """Fills in a batch; returns the bytes that are sent."""
    layout = SlotLayout.of(batch, tables)
    assert fixed.room.holds(layout)
    fixed.fill(batch, layout)
    return fixed.sent_bytes


PARTS: dict[str, Callable[[PretendedGpu], Iterator[Figures]]] = {
    "kernels": kernel_figures,
    "steps": step_figures,
    "drafts": draft_figures,
    "ranks": rank_figures,
    "slots": slot_figures,
}


def main() -> None:
    """Counts and prints the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.counts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    add_report_options(parser)
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("run it with TRITON_INTERPRET=1, since there is no GPU to compile for")
    if unknown := sorted(set(options.parts.split(",")) - set(PARTS)):
        parser.error(f"--parts: no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    prepare_interpreter()
    log = FigureLog(options.json)
    about = machine()
    print(json.dumps({"benchmark": "counts", "machine": about}) if options.json else f"counts\n  {about}", flush=True)
    for part in options.parts.split(","):
        if part in ("ranks", "slots"):  # these are not of this process, or run on no device
            found = PARTS[part](PretendedGpu())
            for figures in found:
                log.add(figures)
            continue
        with pretended_gpu() as gpu:
            for figures in PARTS[part](gpu):
                log.add(figures)
    save(log.figures, options)


if __name__ == "__main__":
    main()
