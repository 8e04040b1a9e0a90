"""A trial of a network that reads features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import ModelLoadError, PackedModel


def try_out(model: PackedModel, run: Callable[[np.ndarray], torch.Tensor]) -> None:
    """Runs a network once. run: computes logits with the two slots that it is given, int64 [2]. Raises
    ModelLoadError."""
    slots = model.pool.take(2)
    try:
        logits = run(slots)
    except Exception as problem:  # of any kind: code of transformers runs with a configuration of unknown origin
        raise ModelLoadError(f"model {model.name} cannot run: {type(problem).__name__}: {problem}") from problem
    finally:
        model.pool.give_back(slots)
    if bool(logits.isnan().any() | logits.isposinf().any()):
        raise ModelLoadError(f"model {model.name}: its logits are not finite numbers")


def try_pass(model: PackedModel) -> None:
    """Runs a pass of a network that reads a feature beside each token. Raises ModelLoadError."""

    def run(slots: np.ndarray) -> torch.Tensor:
        builder = BatchBuilder()
        rows = [builder.add_row(0, at, int(slot), wants_logits=True) for at, slot in enumerate(slots)]
        builder.add_lane(slots[:0], rows)
        batch = builder.build(model.group_size, model.device)
        batch.features = torch.zeros(2, model.hidden_size, dtype=model.dtype)
        return model.forward(batch)

    try_out(model, run)
