"""A DFlash network over KV slots: it reads features of a text, and guesses blocks behind it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwire_core.engine.drafters.blocks.block_network import Block, Reading, try_blocks
from draftwire_core.engine.drafters.dflash.context_keys import ContextKeys
from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig
from draftwire_core.engine.drafters.dflash.dflash_files import Dflash
from draftwire_core.engine.drafters.features.draft_network import in_target_ids
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.room_for_cache import SETTING


class DflashNetwork:
    """A BlockNetwork (see `blocks.block_network`).

    Chen et al., "DFlash: Block diffusion for flash speculative decoding", arXiv 2602.06036. It reads features alone:
    what precedes a token is read in the token's turn. The rows of a block, the root and masks, see each other.
    """

    def __init__(self, dflash: Dflash, slots: int, name: str, setting: str = SETTING):
        """dflash: complete; its linear layers are packed. slots: KV slots. setting: the one that says how
        many. Raises ModelLoadError."""
        self._config: DflashConfig = dflash.config
        self.rows, self.guesses = dflash.config.block_size, dflash.config.guesses
        keys = ContextKeys(dflash.model)
        self.model = PackedModel(dflash.model, slots, name=name, row_exact=False)
        self._keys = keys
        self._target_ids = dflash.target_ids
        try_blocks(self, torch.zeros(1, self.model.hidden_size, dtype=self.model.dtype), setting)

    def read(self, reading: Reading) -> None:
        """Reads features, see BlockNetwork; tokens and context are not needed."""
        positions, slots = torch.from_numpy(reading.positions - 1), torch.from_numpy(reading.slots)
        self._keys.write(reading.features, positions, slots, self.model.cache)

    def guess(self, blocks: Sequence[Block], positions: int) -> torch.Tensor:
        """Returns the logits for the first `positions` tokens after each root, see BlockNetwork."""
        config, pool = self._config, self.model.pool
        builder = BatchBuilder()
        taken = pool.take(len(blocks) * config.block_size)
        first = 0 if config.from_root else 1
        for index, block in enumerate(blocks):
            slots = taken[index * config.block_size : (index + 1) * config.block_size]
            rows = [
                builder.add_row(
                    config.mask_token if place else block.root,
                    block.position + place,
                    int(slot),
                    wants_logits=first <= place < first + positions,
                )
                for place, slot in enumerate(slots)
            ]
            context = block.context[-self._config.window :]
            builder.add_lane(context.copy(), rows, whole=True)
        batch = builder.build(self.model.group_size, self.model.device)
        try:
            logits = self.model.forward(batch)
        finally:
            pool.give_back(taken)
        return in_target_ids(logits, self._target_ids, int(self.model.config.vocab_size))
