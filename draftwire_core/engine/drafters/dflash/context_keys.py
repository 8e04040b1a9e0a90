"""Keys and values of a text in every layer of a DFlash network, computed from the text's features."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.linear.drafter_linear import PackedLinear, replace_linears


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
        replace_linears(self, PackedLinear)
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
