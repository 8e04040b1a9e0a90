"""The model of a GGUF file with all its weights in float32, in transformers: what its quantised products aim at."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile


def expanded_model(file: GgufFile) -> PreTrainedModel:
    """Returns the model of a file."""
    config = file.config()
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {name: tensor.dequantised() for name, tensor in file.tensors.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model.eval()
