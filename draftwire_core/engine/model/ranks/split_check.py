"""Checks whether a model can be split among ranks, by its configuration alone, before any weights are read."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
"""Fields of a configuration that must divide equally among ranks."""


class SplitError(ValueError):
    """Raised if a model cannot be split as requested; the message names the setting and the configuration's field."""


def check_split(config: PretrainedConfig, ranks: int) -> None:
    """Raises SplitError if a model of this configuration cannot be split among `ranks` ranks."""
    text = config.get_text_config(decoder=True)
    if not getattr(text, "base_model_tp_plan", None):
        raise SplitError(
            f"--tensor-parallel: models of type {text.model_type} cannot be split (base_model_tp_plan of their "
            "configuration is empty)"
        )
    if getattr(config, "quantization_config", None):
        raise SplitError("--tensor-parallel: quantized checkpoints (quantization_config) cannot be split")
    for field in _DIVIDED:
        value = getattr(text, field, None)
        if isinstance(value, int) and value % ranks:
            raise SplitError(
                f"--tensor-parallel: {field} of the model's configuration is {value}, which is not divisible by "
                f"{ranks} ranks"
            )


def check_devices(device: str, ranks: int) -> None:
    """Raises SplitError if there are fewer GPUs than ranks; ranks on a CPU share it."""
    if device == "cuda" and torch.cuda.device_count() < ranks:
        seen = torch.cuda.device_count()
        raise SplitError(f"--tensor-parallel: {ranks} ranks need a GPU each (--device cuda), but torch sees {seen}")
