"""One pass of a network that reads features, over a text."""

from collections.abc import Sequence

import torch

from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel


def logits_of(model: PackedModel, tokens: Sequence[int], features: torch.Tensor) -> torch.Tensor:
    """Returns the logits after each token, [tokens, vocabulary]. features: of the tokens before, [tokens, width]."""
    slots = model.pool.take(len(tokens))
    builder = BatchBuilder()
    rows = [
        builder.add_row(token, at, int(slot), wants_logits=True)
        for at, (token, slot) in enumerate(zip(tokens, slots, strict=True))
    ]
    builder.add_lane(slots[:0], rows)
    batch = builder.build(model.group_size, model.device)
    batch.features = features
    return model.forward(batch)
