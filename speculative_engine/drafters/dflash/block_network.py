"""A DFlash network over KV slots: it reads features of a text, and guesses blocks behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from speculative_engine.drafters.dflash.context_keys import ContextKeys
from speculative_engine.drafters.dflash.dflash_config import DflashConfig
from speculative_engine.drafters.dflash.dflash_files import Dflash
from speculative_engine.drafters.features.draft_vocabulary import in_target_ids
from speculative_engine.drafters.features.trial_pass import try_out
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import PackedModel


class Block(NamedTuple):
    """What a block is guessed from."""

    context: np.ndarray
    """Slots of the tokens before the root whose features were read, int64."""
    root: int
    """The last committed token."""
    position: int
    """The root's."""


class BlockNetwork:
    """The network, and the pool of its KV slots (`model.pool`)."""

    def __init__(self, dflash: Dflash, slots: int, name: str):
        """dflash: complete; its linear layers are packed. slots: KV slots. Raises ModelLoadError."""
        self.config: DflashConfig = dflash.config
        keys = ContextKeys(dflash.model)
        self.model = PackedModel(dflash.model, slots, name=name, row_exact=False)
        self._keys = keys
        self._target_ids = dflash.target_ids
        kinds = set(self.config.layers.layer_types)
        window = self.config.layers.sliding_window
        self._window = window - self.config.block_size if kinds == {"sliding_attention"} else None
        """Slots before the root that any layer sees; None for all."""
        try_out(self.model, self._trial)

    def read(self, features: torch.Tensor, positions: np.ndarray, slots: np.ndarray) -> None:
        """Reads features [n, width] of tokens at positions, int64 [n], into slots, int64 [n]."""
        self._keys.write(features, torch.from_numpy(positions), torch.from_numpy(slots), self.model.cache)

    def guess(self, blocks: Sequence[Block], positions: int) -> torch.Tensor:
        """Returns the logits for the first `positions` tokens after each root, [blocks * positions, vocabulary], block
        by block. The pool must have the slots of all blocks free."""
        config, pool = self.config, self.model.pool
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
            context = block.context if self._window is None else block.context[-self._window :]
            builder.add_lane(context.copy(), rows, whole=True)
        batch = builder.build(self.model.group_size, self.model.device)
        try:
            logits = self.model.forward(batch)
        finally:
            pool.give_back(taken)
        return in_target_ids(logits, self._target_ids, int(self.model.config.vocab_size))

    def _trial(self, slots: np.ndarray) -> torch.Tensor:
        features = torch.zeros(len(slots), self.model.hidden_size, dtype=self.model.dtype)
        self.read(features, np.arange(len(slots)), slots)
        return self.guess([Block(slots, 0, len(slots))], 1)
