"""The bundled pair grown to the shapes of a GPU's models, on the device itself."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from models.inflate import Shape, choose_shape, grow, resize


def grown(source: Path, parameters: int | None, layers: int | None, device: torch.device) -> LlamaForCausalLM:
    """A model with the outputs of `source` and about so many parameters, as it is if None; in the checkpoint's type.

    Raises ValueError where no shape of so many holds it.
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
    # Its frequencies are no part of a checkpoint.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    missing = [name for name, value in (*model.named_parameters(), *model.named_buffers()) if value.is_meta]
    if missing:
        raise ValueError(f"{source} lacks {', '.join(missing)}")
    return model


def described(model: LlamaForCausalLM) -> str:
    """A model's shape in words."""
    shape = Shape.of(model.config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{parameters / 1e9:.2f} B parameters: {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads of "
        f"{shape.head_dim}, {shape.kv_heads} key-value heads, feed-forward {shape.mlp}, {model.dtype}"
    )
