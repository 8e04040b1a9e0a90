"""Runs a checkpoint that is split between two ranks in steps that all ranks capture together.

    TRITON_INTERPRET=1 python -m tests.harness.engine.rank_graphs DIRECTORY OUTPUT

Each rank writes its `GraphReport` as JSON to OUTPUT/RANK.json. The Triton kernels run in their interpreter, on a
pretended GPU whose gathers are gloo's.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.loading import slots_that_fit
from draftwire_core.engine.loading.rank_processes import RankProcesses
from draftwire_core.engine.model.cuda import captured_steps
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.ranks.sharded_layers import keep_own_parts
from draftwire_core.engine.model.reading.read_model import read_model
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import GREEDY, ScriptedDrafter, engine_of, generate, random_tokens, specs_of
from tests.harness.engine.pretended_gpu import PretendedGpu, pretended_gpu, to_gpu
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.waiting import eventually

SAMPLINGS = [GREEDY, SamplingParams(temperature=0.8, seed=1)]
PROMPTS = [random_tokens(6, seed=1), random_tokens(3, seed=2)]
_NEW_TOKENS = 5
_FAILING = 3
"""The capture that fails at rank 1."""


@dataclass
class GraphReport:
    """What a rank finds."""

    kernels: str = ""
    slots: int = 0
    """Of the KV cache, for 130 of which rank 1's memory has room, and rank 0's for 10 more."""
    graphs: list[str] = field(default_factory=list)
    """What the log says of them: before they are captured, after that, and after a capture that fails at one rank."""
    captured: list[int] = field(default_factory=list)
    """Their number at the same times."""
    tokens: list[dict[int, list[int]]] = field(default_factory=list)
    """Of rank 0: plain tokens at the same times, and drafted ones with graphs."""
    accepted: int = 0
    """Draft tokens accepted."""
    counts: list[dict[str, int]] = field(default_factory=list)
    """What each pass with graphs asked of the device, all that its step did included at rank 0."""


def split_model(directory: str, ranks: RankGroup) -> PackedModel:
    """This rank's part of the checkpoint, on the pretended GPU."""
    split = read_model(Checkpoint.find(directory), torch.device("cpu"), dtype="float16", ranks=ranks)
    head = split.get_output_embeddings()
    sizes = head.out_features, head.in_features
    keep_own_parts(split, ranks)  # before it moves: transformers' distributed tensors cannot
    head = split.get_output_embeddings()
    head.out_features, head.in_features = sizes
    to_gpu(split)
    model = PackedModel(split, slots_that_fit.PROVISIONAL_SLOTS, ranks=ranks)
    slots_that_fit.size_cache(model, 1.0, graphs=True, rows=20, least=64, most=1000, ranks=ranks)
    return model


def memory(rank: int) -> tuple[int, int]:
    """The pretended memory, which graphs take nothing of."""
    slot = 2 * 16 * 2  # keys and values of one of two heads, float16
    return slots_that_fit._SPARE_BYTES + (130 if rank else 140) * slot, 1 << 30


def counted(call: Callable[..., Any], gpu: PretendedGpu, counts: list[dict[str, int]]) -> Callable[..., Any]:
    """`call`, with what it asks of the device appended to `counts`."""

    def run(*args: Any) -> Any:
        with gpu.counted() as count:
            result = call(*args)
        counts.append(dict(Counter(count)))
        return result

    return run


def failing_capture(replaced: Any) -> Any:
    """A capture whose third graph fails, as one whose exchanges cannot be captured."""

    class Failing(replaced):  # type: ignore[misc]
        def __init__(self, device: torch.device):
            super().__init__(device)
            self._made = 0

        def captured(self, run: Callable[[], Any]) -> Callable[[], Any]:
            self._made += 1
            if self._made == _FAILING:
                raise RuntimeError("NCCL cannot be captured\nfor some reason")
            replay: Callable[[], Any] = super().captured(run)
            return replay

    return Failing


def lead(model: PackedModel, gpu: PretendedGpu, report: GraphReport) -> None:
    """Rank 0: decodes without graphs, with them, with drafts, and after a capture that failed elsewhere."""
    specs = specs_of(PROMPTS, _NEW_TOKENS, SAMPLINGS)

    def note() -> None:
        report.graphs.append(model.graphs)
        report.captured.append(model.captured)

    note()
    report.tokens.append(plain := generate(engine_of(model), specs).tokens)
    model.capture_graphs()
    note()
    engine = engine_of(model)
    engine.step = counted(engine.step, gpu, report.counts)  # type: ignore[method-assign]
    report.tokens.append(generate(engine, specs).tokens)
    drafted = generate(engine_of(model), specs, ScriptedDrafter(plain))
    report.tokens.append(drafted.tokens)
    report.accepted = drafted.accepted
    model.capture_graphs()
    note()
    report.tokens.append(generate(engine_of(model), specs).tokens)


def follow(model: PackedModel, ranks: RankGroup, gpu: PretendedGpu, report: GraphReport) -> None:
    """Rank 1: runs what rank 0 announces. Its second round of captures fails."""
    forward, capture = model.forward, model.capture_graphs

    def capturing() -> None:
        if report.captured:
            captured_steps.GraphCapture = failing_capture(captured_steps.GraphCapture)  # type: ignore[misc]
        capture()
        report.graphs.append(model.graphs)
        report.captured.append(model.captured)

    def counting(batch: Any) -> torch.Tensor:
        if len(report.captured) != 1:
            return forward(batch)
        result: torch.Tensor = counted(forward, gpu, report.counts)(batch)
        return result

    model.capture_graphs, model.forward = capturing, counting  # type: ignore[method-assign]
    ranks.follow(model)


def main() -> None:
    """Runs one of the ranks."""
    prepare_interpreter()
    torch.set_num_threads(1)
    processes = RankProcesses.open(2, device="cpu", timeout_seconds=50)
    ranks, report = processes.ranks, GraphReport()
    with pretended_gpu() as gpu:
        slots_that_fit.memory = lambda _: memory(ranks.rank)  # type: ignore[attr-defined]
        model = split_model(sys.argv[1], ranks)
        report.kernels, report.slots = model.layer_kernels, model.pool.capacity
        ranks.lead()
        if ranks.rank:
            follow(model, ranks, gpu, report)
        else:
            lead(model, gpu, report)
            ranks.dismiss()
    output = Path(sys.argv[2])
    unfinished = output / f"{ranks.rank}.unfinished"
    unfinished.write_text(json.dumps(asdict(report)))
    unfinished.rename(output / f"{ranks.rank}.json")
    if not ranks.rank:  # closing gives the other rank some seconds, which a busy machine may not have
        eventually((output / "1.json").exists, "the other rank has reported")
    processes.close()


if __name__ == "__main__":
    main()
