"""Growing an EAGLE-3 drafter with its target."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.filler import Filler

_FILE, _CONFIG = "model.safetensors", "config.json"


def grow_eagle(tensors: dict[str, Tensor], layers: dict[str, Any], hidden: int, seed: int) -> dict[str, Tensor]:
    """Returns the weights of an EAGLE-3 drafter with the guesses of `tensors`, for a target grown to `hidden`
    dimensions.

    layers: configuration of the small decoder, with one layer of Llama. As in the target, dimensions that the small one
    does not have are zero in the residual stream.
    """
    small = layers["hidden_size"]
    factor = hidden // small
    head_dim = layers["head_dim"]
    queries, keys = (factor * layers[name] * head_dim for name in ("num_attention_heads", "num_key_value_heads"))
    mlp = factor * layers["intermediate_size"]
    fill = Filler(seed, tensors["fc.weight"].dtype)

    def beside(rows: int, weight: Tensor) -> Tensor:
        """Grows a layer whose inputs are several vectors of the hidden size, side by side."""
        return torch.cat([fill.random(rows, hidden, part) for part in weight.split(small, dim=1)], dim=1)

    grown: dict[str, Tensor] = {}
    for name, value in tensors.items():
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind in ("d2t", "t2d"):
            grown[name] = value
        elif value.dim() == 1:
            grown[name] = fill.norm(hidden, value)
        elif kind == "embed_tokens":
            grown[name] = fill.zero(len(value), hidden, value)
        elif kind == "fc":
            grown[name] = beside(hidden, value)
            grown[name][small:] = 0  # features are zero where the small ones have no dimension
        elif kind in ("q_proj", "k_proj", "v_proj"):
            grown[name] = beside(queries if kind == "q_proj" else keys, value)
        elif kind in ("gate_proj", "up_proj"):
            grown[name] = fill.random(mlp, hidden, value)
        elif kind in ("o_proj", "down_proj"):
            grown[name] = fill.zero(hidden, queries if kind == "o_proj" else mlp, value)
        else:
            grown[name] = fill.random(len(value), hidden, value)
    return grown


def inflate_eagle(eagle_dir: str | Path, out_dir: str | Path, hidden: int, seed: int = 0) -> None:
    """Writes to `out_dir` the EAGLE-3 drafter of `eagle_dir`, in the layout of speculators, for a target grown to
    `hidden` dimensions. Raises ValueError unless they are a multiple of its own."""
    source, out = Path(eagle_dir), Path(out_dir)
    config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
    layers = config["transformer_layer_config"]
    if hidden % layers["hidden_size"]:
        raise ValueError(f"{hidden} dimensions are no multiple of {layers['hidden_size']}")
    grown = grow_eagle(load_file(source / _FILE), layers, hidden, seed)
    factor = hidden // layers["hidden_size"]
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"):
        layers[name] *= factor
    layers["rms_norm_eps"] /= factor
    config["target_hidden_size"] = hidden
    out.mkdir(parents=True, exist_ok=True)
    save_file(grown, out / _FILE, metadata={"format": "pt"})
    (out / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / _FILE).chmod(stat.S_IMODE((out / _CONFIG).stat().st_mode))
