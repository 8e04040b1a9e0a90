"""P-EAGLE's network over KV slots: EAGLE-3's, which guesses several tokens in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.drafters.blocks.block_network import Block, Reading, try_blocks
from draftwire_core.engine.drafters.eagle.eagle_files import Eagle
from draftwire_core.engine.drafters.features.draft_network import in_target_ids
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.room_for_cache import SETTING


class ParallelEagleNetwork:
    """A BlockNetwork (see `blocks.block_network`).

    The rows of a block are the root and masks, each of which sees those before it. What has been read is what EAGLE-3
    reads; a block reads the root again. Positions count rows, since tokens may be left out.
    """

    def __init__(self, eagle: Eagle, slots: int, name: str, weights: Weights = "checkpoint", setting: str = SETTING):
        """eagle: complete, with a mask token; its linear layers are packed. slots: KV slots. weights: see PackedModel.
        setting: the one that says how many slots. Raises ModelLoadError."""
        assert eagle.config.mask_token is not None
        self._mask_token = eagle.config.mask_token
        self.rows = self.guesses = eagle.config.guesses
        self._target_ids = eagle.target_ids
        with torch.inference_mode():
            self._mask: torch.Tensor = eagle.mapping(eagle.model.mask_hidden[0])
            """The feature that masks are read next to, [1, width]."""
        self.model = PackedModel(eagle.model, slots, name=name, row_exact=False, weights=weights, reads_features=True)
        try_blocks(self, self._mask, setting)

    def read(self, reading: Reading) -> None:
        """Reads committed tokens, see BlockNetwork."""
        builder, start = BatchBuilder(), len(reading.context)
        rows = [
            builder.add_row(token, start + at, int(slot), wants_logits=False)
            for at, (token, slot) in enumerate(zip(reading.tokens, reading.slots, strict=True))
        ]
        builder.add_lane(reading.context.copy(), rows)
        self._forward(builder, reading.features)

    def guess(self, blocks: Sequence[Block], positions: int) -> torch.Tensor:
        """Returns the logits for the first `positions` tokens after each root, see BlockNetwork."""
        builder, pool = BatchBuilder(), self.model.pool
        taken = pool.take(len(blocks) * positions)
        features: list[torch.Tensor] = []
        for index, block in enumerate(blocks):
            before = block.context[:-1]
            slots = taken[index * positions : (index + 1) * positions]
            rows = [
                builder.add_row(self._mask_token if place else block.root, len(before) + place, int(slot), True)
                for place, slot in enumerate(slots)
            ]
            builder.add_lane(before.copy(), rows)
            features += [block.feature, self._mask.expand(positions - 1, -1)]
        try:
            logits = self._forward(builder, torch.cat(features))
        finally:
            pool.give_back(taken)
        return in_target_ids(logits, self._target_ids, int(self.model.config.vocab_size))

    def _forward(self, builder: BatchBuilder, features: torch.Tensor) -> torch.Tensor:
        batch = builder.build(self.model.group_size, self.model.device)
        batch.features = features
        return self.model.forward(batch)
