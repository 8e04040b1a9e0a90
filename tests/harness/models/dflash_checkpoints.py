"""Small DFlash checkpoints with random weights, in all layouts."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig
from draftwire_core.engine.drafters.dflash.dflash_files import dflash_model, feature_map, save_dflash
from tests.harness.engine.engines import VOCABULARY
from tests.harness.models.random_network import LAYERS, config_of, every_second, set_randomly, write_config

AUX = (1, 2)
MASK = VOCABULARY - 1


def dflash_config(draft_vocab_size: int = VOCABULARY, **fields: Any) -> DflashConfig:
    """The configuration of a network for the tiny models of `engines`, which have 3 layers of width 64."""
    layers = Qwen3Config(**LAYERS, num_hidden_layers=2)
    return DflashConfig(layers, draft_vocab_size, 64, AUX, fields.pop("block_size", 6), MASK, **fields)


def write_dflash(directory: Path, config: DflashConfig | None = None, seed: int = 0) -> Path:
    """Writes a random checkpoint in the layout of speculators; a reduced vocabulary has every second token."""
    config = config or dflash_config()
    torch.manual_seed(seed)
    parts = dflash_model(config), feature_map(config)
    set_randomly(parts)
    ids = every_second(config.draft_vocab_size)
    save_dflash(directory, config, parts, ids, target="tiny", dtype=torch.float32)
    return directory


def as_original(directory: Path, **fields: Any) -> Path:
    """Rewrites a checkpoint in the original layout."""
    given = config_of(directory)
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
    return write_config(directory, config)


def as_assistant(directory: Path, **fields: Any) -> Path:
    """Rewrites a checkpoint in the layout of transformers."""
    given = config_of(directory)
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
    return write_config(directory, config)
