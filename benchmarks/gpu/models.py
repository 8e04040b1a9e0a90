"""Models of the sizes of a GPU's, made on the device itself: the bundled pair inflated, or random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from draftwire_core.engine.model.packed_model import PackedModel
from models.inflate import Shape, choose_shape, grow, resize

SHAPES: dict[str, dict[str, object]] = {
    "llama-8b": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    },
    "llama-1b": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    },
    "toy": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
}
"""Configurations of models with random weights, as known models have them."""


LAYERS = ("kernels", "library")
"""Whether layers run on the Triton kernels, if these support them, or are transformers'."""


def packed(model: PreTrainedModel, slots: int, name: str, layers: str) -> PackedModel:
    """Returns a model with layers of LAYERS, if the kernels run here; with those of the library, passes are plain."""
    return PackedModel(model, slots, name, row_exact=False, kernels=None if layers == "kernels" else False)


def shaped(name: str, device: torch.device) -> LlamaForCausalLM:
    """Returns a bfloat16 model with random weights and the configuration that SHAPES has under this name."""
    config = LlamaConfig(**SHAPES[name], tie_word_embeddings=False)  # type: ignore[arg-type]
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    fill(model, device)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    return model


def fill(model: nn.Module, device: torch.device) -> None:
    """Gives a model on the device "meta" random weights on a device; vectors are ones."""
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)


def grown(source: Path, parameters: int | None, layers: int | None, device: torch.device) -> LlamaForCausalLM:
    """Returns a model with the outputs of `source` and about this many parameters (unchanged if None), in the
    checkpoint's type.

    Raises ValueError if no shape with that many parameters can hold it.
    """
    config = LlamaConfig.from_pretrained(source)
    weights = {name: value.to(device) for name, value in load_file(source / "model.safetensors").items()}
    if parameters is not None:
        small = Shape.of(config)
        tables = 1 if config.tie_word_embeddings else 2
        large = choose_shape(small, parameters, tables * config.vocab_size, layers)
        weights = grow(weights, small, large, seed=0, device=device)
        resize(config, large)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(weights, strict=False, assign=True)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    # Rotary frequencies are not part of a checkpoint.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    missing = [name for name, value in (*model.named_parameters(), *model.named_buffers()) if value.is_meta]
    if missing:
        raise ValueError(f"{source} lacks {', '.join(missing)}")
    return model


def described(model: PackedModel) -> str:
    """Describes a model's shape in words."""
    shape = Shape.of(model.model.config)
    return (
        f"{model.parameters / 1e9:.2f} B parameters: {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads "
        f"of {shape.head_dim}, {shape.kv_heads} key-value heads, feed-forward {shape.mlp}, {model.model.dtype}"
    )
