"""Small DFlash checkpoints with random weights, in all layouts."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from speculative_engine.drafters.dflash.dflash_config import DflashConfig
from speculative_engine.drafters.dflash.dflash_files import dflash_model, feature_map, save_dflash
from tests.harness.engine.engines import VOCABULARY

AUX = (1, 2)
MASK = VOCABULARY - 1


def dflash_config(draft_vocab_size: int = VOCABULARY, **fields: Any) -> DflashConfig:
    """The configuration of a network for the tiny models of `engines`, which have 3 layers of width 64."""
    layers = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    return DflashConfig(layers, draft_vocab_size, 64, AUX, fields.pop("block_size", 6), MASK, **fields)


def write_dflash(directory: Path, config: DflashConfig | None = None, seed: int = 0) -> Path:
    """Writes a random checkpoint in the layout of speculators; a reduced vocabulary has every second token."""
    config = config or dflash_config()
    torch.manual_seed(seed)
    parts = dflash_model(config), feature_map(config)
    with torch.no_grad():
        for part in parts:
            for weight in part.parameters():
                weight.copy_(torch.randn_like(weight) * 0.15 + (weight.dim() == 1))
    ids = None if config.draft_vocab_size == VOCABULARY else 2 * torch.arange(config.draft_vocab_size)
    save_dflash(directory, config, parts, ids, target="tiny", dtype=torch.float32)
    return directory


def as_original(directory: Path, **fields: Any) -> Path:
    """Rewrites a checkpoint in the original layout."""
    given = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = {
        **given["transformer_layer_config"],
        "architectures": ["DFlashDraftModel"],
        "block_size": given["block_size"],
        "num_target_layers": 3,
        "dflash_config": {
            "mask_token_id": given["mask_token_id"],
            "target_layer_ids": [layer - 1 for layer in given["aux_hidden_state_layer_ids"]],
        },
        **fields,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def as_assistant(directory: Path, **fields: Any) -> Path:
    """Rewrites a checkpoint in the layout of transformers."""
    given = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    tensors = load_file(directory / "model.safetensors")
    save_file({names.get(name, name): tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    layers = given["transformer_layer_config"]
    same = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "rms_norm_eps", "rope_parameters", "max_position_embeddings", "layer_types",
    )  # fmt: skip
    config = {
        "model_type": "muse_glimmer_assistant",
        "architectures": ["MuseGlimmerAssistantModel"],
        **{name: layers[name] for name in same},
        "block_size": given["block_size"],
        "mask_token_id": given["mask_token_id"],
        "target_layer_ids": [layer - 1 for layer in given["aux_hidden_state_layer_ids"]],
        **fields,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
