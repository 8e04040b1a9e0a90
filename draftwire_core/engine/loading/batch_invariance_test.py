"""The test of batch invariance at the sizes of serving, for devices whose libraries choose the order of sums by shape.

The short script of the self-test has at most 25 tokens and some 20 rows a pass. That its rows have the same bits in any
batch says nothing of long contexts and full batches: other shapes are other kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel

CONTEXTS = (100, 1500, 5000)
ROWS = (2, 9, 17, 64, 65, 256, 640, 1024)
"""Rows of a row's own sequence in a pass, with it; those that are more than a pass has are left out."""
OTHERS = (1, 8, 63)
"""Rows of other sequences in a pass, before and after it."""
_ONE_BY_ONE = 9
_SEED = 20240812


def slots_for(model: PackedModel) -> int:
    """Number of KV slots that the test needs: at most as many as the model's pool and its context allow."""
    return min(CONTEXTS[-1] + _most_rows(model), model.pool.capacity, model.context_length)


def _most_rows(model: PackedModel) -> int:
    return min(ROWS[-1], model.most_rows)


def is_batch_invariant(model: PackedModel) -> bool:
    """Returns whether rows have the same bits alone, next to others, and in steps of their own.

    Contexts have up to 5000 tokens; those that do not fit are left out. Uses all slots of the model's pool, and gives
    them back.
    """
    slots = model.pool.take(model.pool.free)
    try:
        return all(same for same in _comparisons(model, slots[: slots_for(model)]))
    finally:
        model.pool.give_back(slots)


def _comparisons(model: PackedModel, slots: np.ndarray) -> Iterator[bool]:
    """Compares bit by bit, as long as the results are asked for."""
    chunk = _most_rows(model)
    most = min(chunk, len(slots) // 2)
    room = len(slots) - most
    tokens = np.random.default_rng(_SEED).integers(model.vocab_size, size=len(slots)).tolist()
    own = slots[room:]
    filled = 0
    for context in [*(each for each in CONTEXTS if each < room), room]:
        while filled < context:  # without logits, in chunks as a prompt's
            count = min(chunk, context - filled)
            _run(model, [(slots[:filled], slots[filled : filled + count], tokens[filled : filled + count], 0)])
            filled += count
        after = tokens[context : context + most]
        seen = slots[:context]
        alone = _run(model, [(seen, own[:1], after[:1], 1)])[0]
        for rows in ROWS:
            if rows <= most:
                yield torch.equal(_run(model, [(seen, own[:rows], after[:rows], 1)])[0], alone)
        for others in OTHERS:
            if others < most:
                sequences = [
                    (slots[: context * (index + 1) // (others + 1)], own[index + 1 : index + 2], [tokens[index]], 1)
                    for index in range(others)
                ]
                half = others // 2 + 1
                whole = [*sequences[:half], (seen, own[:1], after[:1], 1), *sequences[half:]]
                yield torch.equal(_run(model, whole)[half], alone)
        few = min(_ONE_BY_ONE, most)
        together = _run(model, [(seen, own[:few], after[:few], few)])
        for index in range(few):
            before = np.concatenate([seen, own[:index]])
            row = _run(model, [(before, own[index : index + 1], after[index : index + 1], 1)])
            yield torch.equal(row[0], together[index])


def _run(model: PackedModel, parts: Sequence[tuple[np.ndarray, np.ndarray, Sequence[int], int]]) -> Tensor:
    """Runs sequences in one pass, each a context, slots and tokens of its rows, and for how many of them logits are
    wanted, from the first on; returns these, [wanted, vocabulary]."""
    builder = BatchBuilder()
    for context, slots, tokens, wanted in parts:
        rows = [
            builder.add_row(token, len(context) + index, int(slot), index < wanted)
            for index, (token, slot) in enumerate(zip(tokens, slots, strict=True))
        ]
        builder.add_lane(context, rows)
    return model.forward(builder.build(model.group_size, model.device))
