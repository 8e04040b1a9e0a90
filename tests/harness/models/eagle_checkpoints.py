"""Small EAGLE-3 checkpoints with random weights, in both layouts."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen3Config

from draftwire_core.engine.drafters.eagle.eagle_config import EagleConfig
from draftwire_core.engine.drafters.eagle.eagle_files import save_eagle
from draftwire_core.engine.drafters.eagle.eagle_model import eagle_model, feature_map
from tests.harness.engine.engines import VOCABULARY
from tests.harness.models.random_network import LAYERS, config_of, every_second, set_randomly, write_config

AUX = (0, 1, 2)


def eagle_config(kind: str = "llama", draft_vocab_size: int = VOCABULARY, **flags: Any) -> EagleConfig:
    """The configuration of a network for the tiny models of `engines`, which have 3 layers of width 64."""
    layers = (LlamaConfig if kind == "llama" else Qwen3Config)(**LAYERS, num_hidden_layers=1)
    return EagleConfig(layers, draft_vocab_size, 64, AUX, **flags)


def write_eagle(directory: Path, config: EagleConfig | None = None, seed: int = 0) -> Path:
    """Writes a random checkpoint in the layout of speculators; a reduced vocabulary has every second token."""
    config = config or eagle_config()
    torch.manual_seed(seed)
    parts = eagle_model(config), feature_map(config, len(config.aux_layers or ()))
    set_randomly(parts)
    ids = every_second(config.draft_vocab_size)
    save_eagle(directory, config, parts, ids, target="tiny", steps=3, dtype=torch.float32)
    return directory


def as_original(directory: Path, **fields: Any) -> Path:
    """Rewrites a checkpoint in the original layout, without the embedding, which is the target's there."""
    tensors = load_file(directory / "model.safetensors")
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    del renamed["embed_tokens.weight"]
    (directory / "model.safetensors").unlink()
    torch.save(renamed, directory / "pytorch_model.bin")
    given = config_of(directory)
    config = {
        **given["transformer_layer_config"],
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": given["draft_vocab_size"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
        **fields,
    }
    return write_config(directory, config)


def change_config(directory: Path, **fields: Any) -> Path:
    """Changes fields of a checkpoint's configuration; None removes one."""
    config = {**config_of(directory), **fields}
    return write_config(directory, {name: value for name, value in config.items() if value is not None})


def change_tensors(directory: Path, **tensors: torch.Tensor | None) -> Path:
    """Changes tensors of a checkpoint, whose names have `__` for dots; None removes one."""
    path = directory / "model.safetensors"
    changed = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    whole = {**load_file(path), **changed}
    save_file({name: tensor for name, tensor in whole.items() if tensor is not None}, path)
    return directory


def write_parallel(directory: Path) -> Path:
    """Writes a random checkpoint that guesses four tokens at once."""
    write_eagle(directory)
    method = {"proposal_type": "greedy", "speculative_tokens": 4}
    change_config(
        directory,
        speculators_model_type="peagle",
        mask_token_id=VOCABULARY - 1,
        speculators_config={"algorithm": "peagle", "proposal_methods": [method]},
    )
    return change_tensors(directory, mask_hidden=torch.randn(1, 1, 3 * 64))
