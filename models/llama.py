"""A plain Llama for training: parameter names are transformers' own, so that a state dict is a checkpoint.

Kept apart from transformers' implementation because this one, in one piece, is what torch.compile fuses well on a CPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig


class Norm(nn.RMSNorm):
    """RMSNorm whose weights take the activations' type, for which PyTorch has a fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped key/value heads."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim, self.heads, self.kv_heads = (
            config.head_dim, config.num_attention_heads, config.num_key_value_heads
        )  # fmt: skip
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [batch, time, hidden]; cos, sin: [time, head_dim]."""
        batch, time, _ = x.shape
        q = _rotate(self.q_proj(x).view(batch, time, self.heads, self.head_dim).transpose(1, 2), cos, sin)
        k = _rotate(self.k_proj(x).view(batch, time, self.kv_heads, self.head_dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, time, self.kv_heads, self.head_dim).transpose(1, 2)
        # The query heads of a group are stacked along time: one product per key/value head, and no copies of it. At
        # these lengths that is about twice as fast backwards as scaled_dot_product_attention.
        groups = self.heads // self.kv_heads
        q = (q * self.head_dim**-0.5).reshape(batch * self.kv_heads, groups * time, self.head_dim)
        k, v = k.reshape(-1, time, self.head_dim), v.reshape(-1, time, self.head_dim)
        with torch.autocast("cpu", enabled=False):  # its softmax would go through float32
            future = torch.full((time, time), float("-inf"), dtype=q.dtype).triu(1).repeat(groups, 1)
            out = torch.softmax(torch.baddbmm(future, q, k.transpose(1, 2)), dim=-1) @ v
        return self.o_proj(out.view(batch, self.heads, time, -1).transpose(1, 2).reshape(batch, time, -1))


class MLP(nn.Module):
    """Gated feed-forward layer (SwiGLU)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token ids [batch, time] to logits [batch, time, vocabulary]; input and output embeddings are tied."""

    def __init__(self, config: LlamaConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
            "layers": nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)]),
            "norm": Norm(config.hidden_size, config.rms_norm_eps),
        })  # fmt: skip
        self.active = list(range(config.num_hidden_layers))  # the layers in use
        theta = 10000.0 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        angles = torch.outer(torch.arange(config.max_position_embeddings), theta).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=scale, generator=generator)

    def silence_residual_writers(self) -> None:
        """Zero every layer's outputs, so that training starts from the embeddings alone: Muon then moves faster."""
        for layer in self.model["layers"]:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)

    def start_shallow(self) -> None:
        """Use every second layer only, which makes the first part of the training much cheaper."""
        self.active = list(range(0, len(self.active), 2))

    @torch.no_grad()
    def grow(self) -> None:
        """Use all layers again. The new ones start as copies of those before them that write nothing yet."""
        layers = self.model["layers"]
        for index in set(range(len(layers))) - set(self.active):
            layers[index].load_state_dict(layers[index - 1].state_dict())
            nn.init.zeros_(layers[index].self_attn.o_proj.weight)
            nn.init.zeros_(layers[index].mlp.down_proj.weight)
        self.active = list(range(len(layers)))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model["embed_tokens"](ids)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.bfloat16)
        cos, sin = self.cos[: ids.shape[1]].to(x.dtype), self.sin[: ids.shape[1]].to(x.dtype)
        for index in self.active:
            x = self.model["layers"][index](x, cos, sin)
        return F.linear(self.model["norm"](x), self.model["embed_tokens"].weight)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on x: [batch, heads, time, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def config_of(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int) -> LlamaConfig:
    """The configuration that transformers loads; `mlp` is the width of the feed-forward layer."""
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=hidden // heads,
        max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, architectures=["LlamaForCausalLM"], dtype="bfloat16",
    )  # fmt: skip
