"""Finds how a checkpoint is quantised: in its configuration, or in a file of the tool that wrote it."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.checkpoint.plain_files import json_object

_CONFIGS = ("quantization_config", "compression_config")
_MODELOPT, _QUANTO = "hf_quant_config.json", "quanto_qmap.json"


def quantisation_of(config: PretrainedConfig) -> object | None:
    """The configuration of a checkpoint's quantisation; None if it is not quantised."""
    return next((found for part in _parts(config) for name in _CONFIGS if (found := getattr(part, name, None))), None)


def _parts(config: PretrainedConfig) -> tuple[PretrainedConfig, PretrainedConfig]:
    """The configuration, and that of its text part, in which Kimi K2.5 says how it is quantised."""
    return config, config.get_text_config(decoder=True)


def find_quantisation(checkpoint: Checkpoint, config: PretrainedConfig) -> None:
    """Gives a configuration the `quantisation_of` a checkpoint that describes it in a file of its own, as ModelOpt,
    optimum-quanto, and older AutoGPTQ and AutoAWQ do. Raises ValueError, which names the file, for one that cannot be
    read."""
    if quantisation_of(config) is not None:
        return
    for name, method, read in _OWN_FILES:
        if (checkpoint.directory / name).is_file():
            found = read(json_object(checkpoint.directory / name))
            config.quantization_config = {**found, "quant_method": found.get("quant_method") or method}
            return


def _of_modelopt(found: dict[str, Any]) -> dict[str, Any]:
    inner = found.get("quantization")
    if not isinstance(inner, dict):
        raise ValueError(f"{_MODELOPT}: quantization is not an object")
    return inner


def _of_quanto(found: dict[str, Any]) -> dict[str, Any]:
    """found: by the names of layers"""
    kinds = {str(each.get("weights")) if isinstance(each, dict) else str(each) for each in found.values()}
    return {"weights": ", ".join(sorted(kinds)), "modules_to_not_convert": None}


def _as_it_is(found: dict[str, Any]) -> dict[str, Any]:
    return found


def forget_quantisation(config: PretrainedConfig) -> None:
    """Removes what a configuration says of a quantisation."""
    for part in _parts(config):
        for name in _CONFIGS:
            if hasattr(part, name):
                delattr(part, name)


_OWN_FILES = (
    (_MODELOPT, "modelopt", _of_modelopt),
    (_QUANTO, "quanto", _of_quanto),
    ("quantize_config.json", "gptq", _as_it_is),
    ("quant_config.json", "awq", _as_it_is),
)
"""Files that describe a quantisation: the method, and what makes a quantization_config of the file."""
