"""The shape of a drafter's network after its target's: its layers, and the tokens that it can draft."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.model.model_facts import values_of_layers
from draftwire_core.training.data.texts import Windows

_FIXED_ROPE = ("default", "linear", "llama3", "yarn")


def layers_like(base: PreTrainedModel) -> dict[str, Any]:
    """Returns the fields of a configuration whose layers are as wide as the target's."""
    text = base.config.get_text_config(decoder=True)
    width, heads = int(base.get_output_embeddings().in_features), int(values_of_layers(text, "num_attention_heads")[0])
    inner = values_of_layers(text, "intermediate_size")[0]
    given = getattr(text, "rope_parameters", None) or {}
    # Heads are rotated as a whole, by one position, whatever the target's are.
    rope = {name: each for name, each in given.items() if not name.startswith(("partial_rotary_factor", "mrope"))}
    return {
        "vocab_size": int(base.get_output_embeddings().out_features),
        "hidden_size": width,
        "intermediate_size": int((inner[0] if isinstance(inner, list) else inner) or 4 * width),
        "num_attention_heads": heads,
        "num_key_value_heads": int(values_of_layers(text, "num_key_value_heads")[0] or heads),
        "head_dim": int(values_of_layers(text, "head_dim")[0] or width // heads),
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", 1e-6)),
        "rope_parameters": rope if rope.get("rope_type") in _FIXED_ROPE else None,
        "tie_word_embeddings": False,
    }


def shallow_layers(layers: int) -> tuple[int, ...]:
    """Returns the layers whose inputs are read of a target too shallow for the usual ones; its number of layers stands
    for the last one's output."""
    return tuple(sorted({min(1, layers), layers // 2, layers}))


def most_frequent(windows: Windows, count: int, vocab_size: int) -> torch.Tensor | None:
    """The ids of the most frequent tokens of the texts, in order, int64 [count]; None if that is the whole vocabulary.

    Raises ValueError for more tokens than there are.
    """
    if count > vocab_size:
        raise ValueError(f"a draft vocabulary of {count} tokens is larger than the target's, {vocab_size}")
    if count in (0, vocab_size):
        return None
    labels = windows.labels[windows.labels >= 0]
    order = torch.bincount(labels, minlength=vocab_size).argsort(descending=True, stable=True)
    return order[:count].sort().values
