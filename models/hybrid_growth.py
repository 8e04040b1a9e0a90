"""Growth of a hybrid, a Qwen3.5 with gated delta nets, that does not change what it computes.

The residual stream has more dimensions, which are zero throughout, and is scaled: embedding and the layers that write
it by a power of two, layers that read it by its inverse. Its mean square stays the same, and with it what norms
compute. Further heads, feed-forward dimensions and layers write zeros. The input and output embeddings are no longer
tied, as their factors differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3_5TextConfig

from models.filler import Filler

_DEPTH = 12  # layers; what a shape should be near, because a call's fixed costs grow with the depth
_MLP_RATIO = 8 / 3
_MLP_STEP = 256  # multiple that feed-forward layers are of: superblocks of quantised weights have 256 inputs


@dataclass(frozen=True)
class HybridShape:
    """Sizes of a hybrid. Its layers are of `kinds` in turn, again and again."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    net_key_heads: int
    net_value_heads: int
    net_key_dim: int
    net_value_dim: int
    taps: int
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, config: Qwen3_5TextConfig) -> HybridShape:
        return cls(
            config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads,
            config.head_dim, config.intermediate_size, config.linear_num_key_heads, config.linear_num_value_heads,
            config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim,
            tuple(config.layer_types),
        )  # fmt: skip

    @property
    def segments(self) -> tuple[int, int, int]:
        """Rows of queries, keys and values in a delta net's joined projection."""
        keys = self.net_key_heads * self.net_key_dim
        return keys, keys, self.net_value_heads * self.net_value_dim

    def kind(self, layer: int) -> str:
        return self.kinds[layer % len(self.kinds)]

    def mixer_parameters(self, kind: str) -> int:
        """Of a layer without its feed-forward block and the norm before that."""
        if kind == "full_attention":
            inner = self.heads * self.head_dim
            return self.hidden * (3 * inner + 2 * self.kv_heads * self.head_dim) + 2 * self.head_dim + self.hidden
        joined, values = sum(self.segments), self.segments[2]
        weights = self.hidden * (joined + 2 * values + 2 * self.net_value_heads)
        return weights + joined * self.taps + 2 * self.net_value_heads + self.net_value_dim + self.hidden

    def parameters(self, embeddings: int) -> int:
        """Of the whole model; `embeddings` is the number of rows in all embedding tables."""
        mixers = sum(self.mixer_parameters(self.kind(layer)) for layer in range(self.layers))
        return mixers + self.layers * (3 * self.hidden * self.mlp + self.hidden) + (embeddings + 1) * self.hidden


def choose_hybrid(small: HybridShape, parameters: int, vocabulary: int, layers: int | None = None) -> HybridShape:
    """A shape of about `parameters` parameters that `small` fits into. Raises ValueError where none does, and for
    `layers` that are no multiple of the kinds."""
    period = len(small.kinds)
    if layers is not None and layers % period:
        raise ValueError(f"{layers} layers are no multiple of {period}, after which the kinds of layers repeat")
    candidates: dict[float, HybridShape] = {}
    for factor in (1, 4, 16, 64):
        for depth in [layers] if layers else range(small.layers, 97, period):
            sizes = {
                "hidden": small.hidden * factor, "heads": small.heads * factor, "kv_heads": small.kv_heads * factor,
                "net_key_heads": small.net_key_heads * factor, "net_value_heads": small.net_value_heads * factor,
            }  # fmt: skip
            thin = HybridShape(**{**vars(small), **sizes, "layers": depth, "mlp": 0})
            left = parameters - thin.parameters(2 * vocabulary)
            exact = left / depth / (3 * thin.hidden)
            step = _MLP_STEP if exact > 4 * _MLP_STEP else 32
            mlp = round(exact / step) * step
            if mlp >= small.mlp and depth >= small.layers:
                oddness = abs(math.log(depth / _DEPTH)) + abs(math.log(mlp / thin.hidden / _MLP_RATIO)) / 2
                candidates[oddness] = HybridShape(**{**vars(thin), "mlp": mlp})
    if not candidates:
        raise ValueError(f"no shape with {parameters} parameters holds this model; try more")
    return candidates[min(candidates)]


def grow_hybrid(weights: dict[str, Tensor], small: HybridShape, large: HybridShape, seed: int) -> dict[str, Tensor]:
    """The weights of a model of shape `large` with the outputs of `weights`."""
    embedding = weights["model.embed_tokens.weight"]
    fill = Filler(seed, embedding.dtype)
    scale = math.sqrt(large.hidden / small.hidden)
    grown = {
        "model.embed_tokens.weight": fill.zero(len(embedding), large.hidden, embedding * scale),
        "model.norm.weight": _padded(weights["model.norm.weight"], large.hidden),
        "lm_head.weight": fill.zero(len(embedding), large.hidden, weights.get("lm_head.weight", embedding) / scale),
    }
    for number in range(large.layers):
        prefix = f"model.layers.{number}."
        old = {
            name.removeprefix(prefix): value
            for name, value in weights.items()
            if number < small.layers and name.startswith(prefix)
        }
        layer = _Layer(old, small, large, fill, scale)
        grown |= {prefix + name: value.to(embedding.dtype) for name, value in layer.weights(large.kind(number)).items()}
    return grown


def resize_hybrid(config: Qwen3_5TextConfig, large: HybridShape) -> None:
    """Make the configuration of a model that of the same grown to shape `large`, in place."""
    config.hidden_size, config.num_hidden_layers, config.intermediate_size = large.hidden, large.layers, large.mlp
    config.num_attention_heads, config.num_key_value_heads = large.heads, large.kv_heads
    config.linear_num_key_heads, config.linear_num_value_heads = large.net_key_heads, large.net_value_heads
    config.layer_types = [large.kind(layer) for layer in range(large.layers)]
    config.tie_word_embeddings = False


class _Layer:
    """A layer that grows; an additional one if it has no weights yet."""

    def __init__(
        self, old: dict[str, Tensor], small: HybridShape, large: HybridShape, fill: Filler, scale: float
    ) -> None:
        self._old, self._small, self._large, self._fill, self._scale = old, small, large, fill, scale

    def weights(self, kind: str) -> dict[str, Tensor]:
        large = self._large
        found = {name: self._norm(name) for name in ("input_layernorm.weight", "post_attention_layernorm.weight")}
        found |= {name: self._reading(name, large.mlp) for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight")}
        found["mlp.down_proj.weight"] = self._writing("mlp.down_proj.weight", large.mlp)
        return found | (self._attention() if kind == "full_attention" else self._net())

    def _attention(self) -> dict[str, Tensor]:
        large, at = self._large, "self_attn."
        inner, keys = large.heads * large.head_dim, large.kv_heads * large.head_dim
        rows = {"q_proj": 2 * inner, "k_proj": keys, "v_proj": keys}
        found = {f"{at}{name}.weight": self._reading(f"{at}{name}.weight", count) for name, count in rows.items()}
        found[f"{at}o_proj.weight"] = self._writing(f"{at}o_proj.weight", inner)
        for name in (f"{at}q_norm.weight", f"{at}k_norm.weight"):
            found[name] = self._old.get(name, torch.zeros(large.head_dim))
        return found

    def _net(self) -> dict[str, Tensor]:
        large, at = self._large, "linear_attn."
        joined, convolution = f"{at}in_proj_qkv.weight", f"{at}conv1d.weight"
        filters = self._old.get(convolution)
        found = {
            joined: torch.cat(
                [
                    self._fill.random(rows, large.hidden, None if part is None else part / self._scale)
                    for rows, part in zip(large.segments, self._parts(self._old.get(joined)), strict=True)
                ]
            ),
            convolution: torch.cat(
                [
                    self._fill.random(rows, large.taps, None if part is None else part.squeeze(1)).unsqueeze(1)
                    for rows, part in zip(large.segments, self._parts(filters), strict=True)
                ]
            ),
            f"{at}in_proj_z.weight": self._reading(f"{at}in_proj_z.weight", large.segments[2]),
            f"{at}out_proj.weight": self._writing(f"{at}out_proj.weight", large.segments[2]),
            f"{at}norm.weight": self._old.get(f"{at}norm.weight", torch.ones(large.net_value_dim)),
        }
        for name in ("in_proj_a", "in_proj_b"):
            found[f"{at}{name}.weight"] = self._reading(f"{at}{name}.weight", large.net_value_heads)
        for name in (f"{at}A_log", f"{at}dt_bias"):
            values = self._old.get(name, torch.zeros(1))
            found[name] = values.repeat(math.ceil(large.net_value_heads / len(values)))[: large.net_value_heads]
        return found

    def _parts(self, joined: Tensor | None) -> list[Tensor | None]:
        """Rows of queries, keys and values."""
        return [None] * 3 if joined is None else list(joined.split(self._small.segments))

    def _norm(self, name: str) -> Tensor:
        return _padded(self._old.get(name, torch.zeros(0)), self._large.hidden)

    def _reading(self, name: str, rows: int) -> Tensor:
        """A projection of the residual stream. Its inputs beyond the small model's are zero."""
        old = self._old.get(name)
        return self._fill.random(rows, self._large.hidden, None if old is None else old / self._scale)

    def _writing(self, name: str, columns: int) -> Tensor:
        """A projection onto the residual stream, which drops what the small model does not have."""
        old = self._old.get(name)
        return self._fill.zero(self._large.hidden, columns, None if old is None else old * self._scale)


def _padded(values: Tensor, size: int) -> Tensor:
    return torch.cat([values, values.new_zeros(size - len(values))])
