"""The bundled pair inflated to the shapes of a GPU's models, on the device itself."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from models.inflate import Shape, choose_shape, grow, resize


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


def described(model: LlamaForCausalLM) -> str:
    """Describes a model's shape in words."""
    shape = Shape.of(model.config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{parameters / 1e9:.2f} B parameters: {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads of "
        f"{shape.head_dim}, {shape.kv_heads} key-value heads, feed-forward {shape.mlp}, {model.dtype}"
    )
