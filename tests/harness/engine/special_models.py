"""Tiny models with a property that a test needs."""

import copy

import torch
from transformers import PreTrainedModel

from tests.harness.engine.engines import tiny_model


def truncated(model: torch.nn.Module, layers: int) -> torch.nn.Module:
    """Returns transformers' own model of the first layers, with the same weights."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    for name in ("layer_types", "no_rope_layers"):
        if getattr(config, name, None):
            setattr(config, name, getattr(config, name)[:layers])
    shallow = type(model)(config)
    found = shallow.load_state_dict(model.state_dict(), strict=False)
    assert not found.missing_keys
    return shallow.to(model.dtype).eval()


def early_model(name: str = "Llama", dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """Returns a model whose last layer changes little, so that its first two layers often predict the same token."""
    model = tiny_model(name, dtype, **changes)
    with torch.no_grad():
        for weight in model.get_decoder().layers[-1].parameters():
            if weight.dim() == 2:
                weight.mul_(0.5)
    return model


def llama(dtype: torch.dtype) -> PreTrainedModel:
    """Returns a model whose layers run in the compiled library, including its matrix products where it has them."""
    return tiny_model("Llama", dtype, hidden_size=64, intermediate_size=96, num_attention_heads=2, head_dim=32)


def quick_model(**changes: object) -> PreTrainedModel:
    """Returns a model of two layers that run in the compiled library, whose steps take half as long as others'."""
    sizes = {"intermediate_size": 96, "num_attention_heads": 2, "head_dim": 32, "num_hidden_layers": 2}
    return tiny_model("Llama", **{**sizes, **changes})
