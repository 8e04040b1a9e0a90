"""Runs a checkpoint on the Triton kernels of GPUs, in their interpreter, split between two ranks.

    TRITON_INTERPRET=1 python -m tests.harness.engine.rank_kernels DIRECTORY

Rank 0 prints one line of JSON, a `KernelReport`. Both ranks run the same passes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import torch

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.loading.rank_processes import RankProcesses
from draftwire_core.engine.model.cuda import placing
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.reading.read_model import read_model
from tests.harness.engine.engines import check_against_plain, random_tokens, walk
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

TEXTS = [random_tokens(7, seed=1), random_tokens(3, seed=2)]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class KernelReport:
    """What a split model computes."""

    kernels: str
    error: float
    """From transformers' layers, in standard deviations of the logits."""
    compared: int
    same_bits: bool
    """Whether the rows compared have the same bits decoded one by one as in a batch of trees."""
    captured: int
    """Sizes of steps that were captured, before these rows were computed."""


def report(directory: str, ranks: RankGroup) -> KernelReport:
    """Runs some batches. Raises ModelLoadError."""
    checkpoint = Checkpoint.find(directory)
    split = read_model(checkpoint, CPU, dtype="float32", ranks=ranks)
    model = PackedModel(split, 60, ranks=ranks, kernels=True)
    model.capture_graphs()
    rows = walk(model, TEXTS, [4, 1], seed=6)
    alone = walk(model, TEXTS[:1], [4], trees=False, together=False)
    same = rows.keys() & alone.keys()
    return KernelReport(
        model.layer_kernels,
        check_against_plain(read_model(checkpoint, CPU, dtype="float32"), rows),
        len(same),
        all(torch.equal(rows[row], alone[row]) for row in same),
        model.captured,
    )


def main() -> None:
    """Runs one of the ranks."""
    prepare_interpreter()
    placing.try_kernels = lambda *_: []  # as tests of products find, which takes a minute here
    torch.set_num_threads(1)
    processes = RankProcesses.open(2, device="cpu", timeout_seconds=50)
    found = report(sys.argv[1], processes.ranks)
    if not processes.ranks.rank:
        print(json.dumps(asdict(found)))
    processes.close()


if __name__ == "__main__":
    main()
