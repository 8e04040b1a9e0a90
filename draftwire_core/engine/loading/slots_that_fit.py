"""The size of the KV cache from a GPU's free memory, after weights, CUDA graphs and the largest step.

Ranks each count on a GPU of their own, and all take the smallest number: a KV slot is one of every rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftwire_core.engine.device.gpu import memory, return_unused
from draftwire_core.engine.errors import ModelMemoryError
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT, SlotPool
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup

_MOST_KEYS = 1 << 16
"""Keys that the largest step of the trial sees at most."""
PROVISIONAL_SLOTS = _MOST_KEYS
"""Slots of a model until its cache is sized; the cache takes no memory before its first pass."""
_SPARE_BYTES = 256 << 20
"""Left over for what no trial shows, such as fragmented memory and libraries' workspaces."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """A model's needs of device memory next to the weights, in bytes."""

    slot: int
    """A KV slot, in all layers."""
    step: int
    """The working memory of the largest step."""
    graphs: int
    """CUDA graphs."""


def slots_that_fit(free: int, total: int, utilization: float, needs: MemoryNeeds) -> int:
    """Number of KV slots for which there is memory; 0 or less if there is none.

    free, total: bytes of the device. utilization: share of the total that all processes may use together.
    """
    return (free - round((1 - utilization) * total) - needs.step - needs.graphs - _SPARE_BYTES) // needs.slot


def size_cache(
    model: PackedModel,
    utilization: float,
    *,
    graphs: bool,
    rows: int,
    least: int,
    most: int,
    ranks: RankGroup | None = None,
) -> None:
    """Gives a model on a GPU a KV cache as large as the memory allows. The model must be idle.

    utilization: as for `slots_that_fit`. graphs: whether CUDA graphs will be captured. rows: of the largest step.
    least, most: bounds of the number of slots. ranks: those that the model is split among; all must call this, before
    rank 0 leads. Raises ModelMemoryError, at every rank, if fewer than `least` fit at one, and RankLostError.
    """
    needs = _needs(model, graphs, rows)
    free, total = memory(model.device)
    slots = slots_that_fit(free, total, utilization, needs)
    lacking: str | None = None
    if slots < least:
        needed = least * needs.slot + needs.step + needs.graphs + _SPARE_BYTES
        lacking = (
            f"{least} KV slots do not fit: with graphs and the largest step they take {needed / 2**30:.1f} GiB next to "
            f"the weights; {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free, and {utilization:.0%} may be in use "
            "(--gpu-memory-utilization)"
        )
    if ranks is not None:
        lacking, slots = ranks.agreed(lacking), min(ranks.numbers(slots))
    if lacking is not None:
        raise ModelMemoryError(f"model {model.name}: {lacking}")
    model.resize(min(slots, most))


def _needs(model: PackedModel, graphs: bool, rows: int) -> MemoryNeeds:
    """Tries out with a small cache what a model needs."""
    with model.other_slots(SlotPool(rows)):
        _run(model, 1, 0)  # the cache is made by the first pass
        slot = model.cache.bytes // (rows + 1)
        step = _peak(model, rows)
        taken = 0
        if graphs:
            before, _ = memory(model.device)
            model.capture_graphs()
            after, _ = memory(model.device)
            taken = max(0, before - after)
    return_unused()
    return MemoryNeeds(slot, step, taken)


def _peak(model: PackedModel, rows: int) -> int:
    """The working memory of a step of so many rows, behind as many keys as the model allows."""
    keys = min(_MOST_KEYS, max(1, model.context_length - rows))
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device) if cuda else 0
    _run(model, rows, keys)
    if not cuda:
        return 0
    torch.cuda.synchronize(model.device)
    used = int(torch.cuda.max_memory_allocated(model.device)) - before
    return_unused()
    return used


def _run(model: PackedModel, rows: int, keys: int) -> None:
    """Runs a pass of one sequence with logits of all rows, after keys that are all the padding slot's."""
    builder = BatchBuilder()
    slots = model.pool.take(rows)
    context = np.full(keys, PADDING_SLOT, dtype=np.int64)
    builder.add_lane(context, [builder.add_row(0, keys + index, int(slot), True) for index, slot in enumerate(slots)])
    model.forward(builder.build(model.group_size, model.device))
    model.pool.give_back(slots)
