"""A trial of a network that reads features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.room_for_cache import check_room


def try_out(model: PackedModel, run: Callable[[np.ndarray], torch.Tensor], rows: int, setting: str) -> None:
    """Runs a network, first with few KV slots, which show how large they are, and then with its own.

    run: computes logits with the two slots that it is given, int64 [2]. rows: slots that it takes besides. setting: the
    one that says how many slots the network has. Raises ModelLoadError, and ModelMemoryError if its KV cache does not
    fit into the memory that is free.
    """
    with model.other_slots(SlotPool(2 + rows)):
        _run(model, run)
        slot_bytes = model.cache.bytes // (model.cache.capacity + 1)
    check_room(model, slot_bytes, setting, has_types=False)
    _run(model, run)


def _run(model: PackedModel, run: Callable[[np.ndarray], torch.Tensor]) -> None:
    slots = model.pool.take(2)
    try:
        logits = run(slots)
    except Exception as problem:  # of any kind: code of transformers runs with a configuration of unknown origin
        raise ModelLoadError(f"model {model.name} cannot run: {type(problem).__name__}: {problem}") from problem
    finally:
        model.pool.give_back(slots)
    if bool(logits.isnan().any() | logits.isposinf().any()):
        raise ModelLoadError(f"model {model.name}: its logits are not finite numbers")


def try_pass(model: PackedModel, setting: str) -> None:
    """Runs a network that reads a feature next to each token, see `try_out`."""

    def run(slots: np.ndarray) -> torch.Tensor:
        builder = BatchBuilder()
        rows = [builder.add_row(0, at, int(slot), wants_logits=True) for at, slot in enumerate(slots)]
        builder.add_lane(slots[:0], rows)
        batch = builder.build(model.group_size, model.device)
        batch.features = torch.zeros(2, model.hidden_size, dtype=model.dtype, device=model.device)
        return model.forward(batch)

    try_out(model, run, 0, setting)
