"""A DFlash network over KV slots: it reads features of a text, and guesses blocks behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.drafters.blocks.block_network import Block, Reading, try_blocks
from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig
from draftwire_core.engine.drafters.dflash.dflash_files import Dflash
from draftwire_core.engine.drafters.features.draft_network import in_target_ids
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.linear.drafter_linear import pack_linears
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.room_for_cache import SETTING


class ContextKeys(nn.Module):
    """The projections to keys and values of all layers, side by side: one product reads them for any number of
    features."""

    def __init__(self, model: PreTrainedModel):
        """model: a decoder with the layers of Qwen3, whose linear layers have not been packed yet; the projections are
        copied."""
        super().__init__()
        decoder = model.get_decoder()
        attentions = [layer.self_attn for layer in decoder.layers]
        self._angles = decoder.rotary_emb
        self._heads = int(model.config.num_key_value_heads)
        both = [linear for attention in attentions for linear in (attention.k_proj, attention.v_proj)]
        biased = both[0].bias is not None
        joint = nn.Linear(both[0].in_features, sum(each.out_features for each in both), bias=biased, device="meta")
        joint.weight = nn.Parameter(torch.cat([each.weight for each in both]), requires_grad=False)
        if biased:
            joint.bias = nn.Parameter(torch.cat([each.bias for each in both]), requires_grad=False)
        self.project = joint
        pack_linears(self)
        self._eps = float(attentions[0].k_norm.variance_epsilon)
        self._norms: torch.Tensor
        """float32 [layers, 1, dim]: weights of the norms of each head's keys"""
        norms = torch.stack([attention.k_norm.weight for attention in attentions])
        self.register_buffer("_norms", norms.float().unsqueeze(1), persistent=False)

    @torch.inference_mode()
    def write(self, features: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, cache: KvCache) -> None:
        """Writes the keys and values of tokens to their slots.

        features: [n, hidden]. positions, slots: int64 [n].
        """
        dim = self._norms.shape[-1]
        layers = len(self._norms)
        both = self.project(features).view(len(features), layers, 2, self._heads, dim)
        keys, values = both[:, :, 0].float(), both[:, :, 1]
        keys = keys * torch.rsqrt(keys.square().mean(-1, keepdim=True) + self._eps) * self._norms
        cosines, sines = self._angles(features.float().unsqueeze(0), positions.unsqueeze(0))
        cosines, sines = (each[0, :, None, None].float() for each in (cosines, sines))
        turned = torch.cat([-keys[..., dim // 2 :], keys[..., : dim // 2]], dim=-1)
        keys = (keys * cosines + turned * sines).to(features.dtype)
        for layer in range(layers):
            cache.write(layer, slots, keys[:, layer].transpose(0, 1), values[:, layer].transpose(0, 1))


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
        feature = torch.zeros(1, self.model.hidden_size, dtype=self.model.dtype, device=self.model.device)
        try_blocks(self, feature, setting)

    def read(self, reading: Reading) -> None:
        """Reads features, see BlockNetwork; tokens and context are not needed."""
        numbers = torch.from_numpy(np.stack([reading.positions - 1, reading.slots]))
        positions, slots = to_device(numbers, self.model.device)
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
