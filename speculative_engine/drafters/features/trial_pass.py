"""A trial pass of a network that reads features."""

from __future__ import annotations

import torch

from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import ModelLoadError, PackedModel


def try_out(model: PackedModel) -> None:
    """Runs a trial pass. Raises ModelLoadError."""
    builder = BatchBuilder()
    slots = model.pool.take(2)
    builder.add_lane(slots[:0], [builder.add_row(0, at, int(slot), wants_logits=True) for at, slot in enumerate(slots)])
    batch = builder.build(model.group_size, model.device)
    batch.features = torch.zeros(2, model.hidden_size, dtype=model.dtype)
    try:
        logits = model.forward(batch)
    except Exception as problem:  # of any kind: code of transformers runs with a configuration of unknown origin
        raise ModelLoadError(f"model {model.name} cannot run: {type(problem).__name__}: {problem}") from problem
    finally:
        model.pool.give_back(slots)
    if not bool(logits.isfinite().all()):
        raise ModelLoadError(f"model {model.name}: its logits are not finite numbers")
