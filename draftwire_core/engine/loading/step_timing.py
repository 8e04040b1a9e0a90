"""Measures the step cost c(n) of a loaded model."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost

MOST_TIMED_ROWS = 128
"""Rows of the largest pass that is timed by default."""
_LEAST_TIMES, _MOST_TIMES = 2, 20
_SECONDS = 3.0
"""Time for all passes, divided equally among their kinds. Fast passes, whose times a busy moment distorts most, are
timed more often in it."""
_SECONDS_OF_BLOCKS = 0.5
"""Time for the passes in which products begin or end a block of rows, on top of it. As each is timed
twice at least, they take at most twice as long."""
_MOST_BLOCKS = 4
"""Blocks of rows whose ends are timed. Where there are more, another one adds little."""
_LONG_PASS = 0.25
"""Seconds of a pass beyond which more rows are not tried. Their rows cost about as much each as the last ones tried."""
_LEAST_ROWS = 4
"""Rows that are tried however long they take."""
_ONCE = 1.0
"""Seconds of a pass that is timed only once."""
_CONTEXT = 128
_LONG_CONTEXT = 1024
_ROWS_OF_LONG_CONTEXT = 16
_MOST_SEQUENCES = 16
_SEED = 20261125


def measure_step_cost(model: PackedModel, most_rows: int = MOST_TIMED_ROWS) -> StepCost:
    """Times forward passes to determine the cost per row, per position that a row sees, and per position read.

    Times 1 to `most_rows` rows after a context of 128 tokens (less if the KV cache is smaller): powers of two, and the
    numbers between which compiled products need another block of rows, since one row more then costs a block. Times 16
    rows after a context of 1024 (cost per position seen), and 16 rows that each have their own context (cost per
    position read). Where a pass takes long, fewer rows are timed; StepCost extrapolates.

    Passes alternate, and the fastest of several counts: slower ones measure a busy machine, not the model. Takes a few
    seconds, or the time of a few passes where a single one takes seconds. Frees the slots that it takes.
    """

    def batch_of(contexts: Sequence[np.ndarray], slots: np.ndarray) -> PackedBatch:
        batch = _batch(model, contexts, slots)
        if model.reads_features:
            batch.features = torch.zeros(len(slots), model.hidden_size, dtype=model.dtype, device=model.device)
        return batch

    most = min(model.pool.capacity, model.context_length)
    context = max(0, min(_CONTEXT, model.pool.capacity // 2, most - MOST_TIMED_ROWS))
    rows = [1 << power for power in range(most_rows.bit_length()) if 1 << power <= most - context]
    held = model.pool.take(context + rows[-1])
    try:
        batches = [batch_of([held[:context]], held[context : context + count]) for count in rows]
        times = _first_times(model, rows, batches)
    finally:
        model.pool.give_back(held)
    rows = rows[: len(times)]
    few = min(_ROWS_OF_LONG_CONTEXT, rows[-1])
    longer = max(context, min(_LONG_CONTEXT, model.pool.capacity // 2, most - few))
    room = min(_MOST_SEQUENCES, model.pool.capacity // 2 // (context + 1))
    sequences = max((count for count in rows if count <= room), default=1)
    first_times = dict(zip(rows, times, strict=True))
    ends = _ends_of_blocks(model, [(count, taken[0]) for count, taken in first_times.items()])
    rows = sorted({*rows, *ends})
    times = [first_times.get(count, []) for count in rows]
    held = model.pool.take(max(context + rows[-1], longer + few, sequences * (context + 1)))
    try:
        batches = [batch_of([held[:context]], held[context : context + count]) for count in rows]
        batches.append(batch_of([held[:longer]], held[longer : longer + few]))
        contexts = [held[index * context : (index + 1) * context] for index in range(sequences)]
        own = held[sequences * context : sequences * (context + 1)]
        batches.append(batch_of(contexts, own))
        times += [[], []]
        share, of_end = _SECONDS / (len(batches) - len(ends)), _SECONDS_OF_BLOCKS / max(1, len(ends))
        shares = [of_end if count in ends else share for count in rows] + [share, share]
        _time_again(model, batches, times, shares)
    finally:
        model.pool.give_back(held)
    *seconds, at_longer, of_sequences = map(min, times)
    per_seen = 0.0
    if longer > context:
        per_seen = max(0.0, at_longer - seconds[rows.index(few)]) / (few * (longer - context))
    # Besides the context, a row of a batch sees half of the other rows on average.
    unseeing = [
        max(time - per_seen * count * (context + (count + 1) / 2), time / 2)
        for count, time in zip(rows, seconds, strict=True)
    ]
    per_read = 0.0
    if sequences > 1 and context:
        alone = unseeing[rows.index(sequences)] + per_seen * sequences * (context + 1)
        per_read = max(0.0, of_sequences - alone) / ((sequences - 1) * context)
    return StepCost(rows, unseeing, per_seen, context, per_read)


def _first_times(model: PackedModel, rows: Sequence[int], batches: Sequence[PackedBatch]) -> list[list[float]]:
    """Times each batch once, in the order of their numbers of rows, up to the first that takes long."""
    times: list[list[float]] = []
    for count, batch in zip(rows, batches, strict=True):
        times.append([_timed(model, batch)])
        if count >= _LEAST_ROWS and times[-1][0] > _LONG_PASS:
            break
    return times


def _ends_of_blocks(model: PackedModel, timed: Sequence[tuple[int, float]]) -> list[int]:
    """Other numbers of rows than those timed, below the largest, after or before which the products of the model need
    another block of rows. There are no more than can be timed in the time for them.

    timed: numbers of rows, ascending, each with the seconds of a pass.
    """
    sizes: Counter[str] = Counter()
    products: dict[str, CompiledProduct] = {}
    for each in model.model.modules():
        if isinstance(each, CompiledProduct):
            sizes[each.weight_type] += each.outputs * each.inputs
            products[each.weight_type] = each
    if not products:
        return []
    product = products[sizes.most_common(1)[0][0]]

    def blocks(rows: int) -> tuple[int, int]:
        at_once = product.rows_at_once(rows)
        return at_once, -(-rows // at_once)

    counts, most = [rows for rows, _ in timed], timed[-1][0]
    if product.rows_at_once(most) == 1:
        return []
    last = [rows for rows in range(1, most) if blocks(rows) != blocks(rows + 1)][:_MOST_BLOCKS]
    found: list[int] = []
    left = _SECONDS_OF_BLOCKS
    for rows in sorted({each for end in last for each in (end, end + 1)} - set(counts)):
        left -= _LEAST_TIMES * timed[bisect.bisect_left(counts, rows)][1]
        if left < 0:
            break
        found.append(rows)
    return found


def _time_again(
    model: PackedModel, batches: Sequence[PackedBatch], times: Sequence[list[float]], shares: Sequence[float]
) -> None:
    """Times batches by turns, each until it has been timed often enough or for its share of the time, in seconds."""

    def is_due(taken: list[float], share: float) -> bool:
        if len(taken) < _LEAST_TIMES:
            return not taken or taken[0] < _ONCE
        return len(taken) < _MOST_TIMES and sum(taken) + min(taken) <= share

    while any(map(is_due, times, shares)):
        for batch, taken, share in zip(batches, times, shares, strict=True):
            if is_due(taken, share):
                taken.append(_timed(model, batch))


def _batch(model: PackedModel, contexts: Sequence[np.ndarray], slots: np.ndarray) -> PackedBatch:
    """A batch with a row for each slot, divided equally among the contexts.

    Tokens are drawn from the whole vocabulary. Rows of a mixture of experts, in which each expert that a step needs
    costs the time of reading its weights, thus need as different ones as rows of different texts. The first tokens of
    a vocabulary are often alike: special ones or bytes, which are hardly trained.
    """
    builder = BatchBuilder()
    tokens = iter(np.random.default_rng(_SEED).integers(model.vocab_size, size=len(slots)).tolist())
    for context, own in zip(contexts, np.split(slots, len(contexts)), strict=True):
        rows = [
            builder.add_row(next(tokens), len(context) + index, int(slot), wants_logits=True)
            for index, slot in enumerate(own)
        ]
        builder.add_lane(context, rows)
    return builder.build(model.group_size, model.device)


def _timed(model: PackedModel, batch: PackedBatch) -> float:
    stop_if_abandoned()
    started = time.perf_counter()
    model.forward(batch)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - started
