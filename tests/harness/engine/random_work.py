"""Random batches, stored keys and verification jobs."""

import random

import numpy as np
import torch

from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.sequence import Sequence, SequenceSpec
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams

SLOTS = 400
CPU = torch.device("cpu")


def ragged_batch(group_size: int, seed: int = 0) -> PackedBatch:
    """Returns a prompt chunk, a tree with siblings, a sequence's first token, and two branches with own contexts."""
    rng = np.random.default_rng(seed)
    free = iter((rng.permutation(SLOTS - 1) + 1).tolist())
    builder = BatchBuilder()

    def take(count: int) -> np.ndarray:
        return np.array([next(free) for _ in range(count)], dtype=np.int64)

    def row(position: int) -> int:
        return builder.add_row(int(rng.integers(100)), position, next(free), True)

    context = take(37)
    builder.add_lane(context, [row(37 + index) for index in range(9)])
    context = take(70)
    root = row(70)
    left, right, below, leaf = row(71), row(71), row(72), row(73)
    builder.add_lane(context, [root, left])
    builder.add_lane(context, [root, right, below, leaf], 1)
    builder.add_lane(context[:0], [row(0)])
    for _ in range(2):
        builder.add_lane(take(21), [row(21)])
    return builder.build(group_size, CPU)


def stored(kv_heads: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(kv_heads, SLOTS, dim, generator=torch.Generator().manual_seed(seed))


def random_job(rng: random.Random, number: int) -> VerificationJob:
    """Returns a job of up to 40 nodes, deep or wide. Few distinct tokens make long matching paths likely."""
    sequence = Sequence(SequenceSpec(number, [1], 200, SamplingParams(temperature=0.0)))
    nodes = []
    for _ in range(rng.randint(0, 40)):
        parent = rng.choice([sequence.tree.root, *nodes[-3:]])
        node, added = sequence.tree.add(parent, rng.randrange(3))
        if added:
            nodes.append(node)
    return VerificationJob(sequence, 1, nodes)


def walked(drawn: list[int], on_path: list[bool] | None = None) -> AskedRows:
    """Returns the rows of a job that drew these tokens; the coupled rule reads no logits."""
    return AskedRows(drawn, on_path, torch.empty(0), torch.empty(0), None)
