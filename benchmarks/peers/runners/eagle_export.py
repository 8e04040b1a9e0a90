"""An EAGLE-3 checkpoint in OpenVINO's format, from one in the layout of speculators."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_EXPORT = """
import sys
import transformers.dynamic_module_utils as dynamic
dynamic.check_imports = dynamic.get_relative_imports  # names packages for images, which this model does not need
from optimum.exporters.openvino.__main__ import main_export
main_export(
    sys.argv[1], sys.argv[2], task="text-generation-with-past", trust_remote_code=True, library_name="transformers"
)
"""
_MARK = '<eagle3_mode value="True" />'


def exported_eagle(eagle: str, target: str, cache: str) -> Path:
    """Returns the checkpoint of `eagle` in OpenVINO's format, made once. Raises RuntimeError if there is none."""
    place = Path(cache) / f"{Path(eagle).name}-openvino"
    if not place.exists():
        unfinished = place.with_name(f"{place.name}.{os.getpid()}")
        layers = _original_layout(Path(eagle), Path(target), unfinished / "original")
        made = unfinished / "openvino"
        command = [sys.executable, "-c", _EXPORT, str(unfinished / "original"), str(made)]
        exported = subprocess.run(command, check=False, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if exported.returncode:
            print(exported.stderr, file=sys.stderr)
            raise RuntimeError(f"optimum-intel cannot export: {exported.stderr.strip().splitlines()[-1]}")
        graph = made / "openvino_model.xml"
        text = re.sub(re.escape(_MARK), f'{_MARK}<hidden_layers_list value="{layers}" />', graph.read_text())
        graph.write_text(text)
        made.rename(place)
        shutil.rmtree(unfinished)
    return place


def _original_layout(eagle: Path, target: Path, out: Path) -> str:
    """Writes the checkpoint in the original layout. Returns the layers whose outputs it reads, as OpenVINO writes
    lists."""
    config: dict[str, Any] = json.loads((eagle / "config.json").read_text())
    if config["norm_before_residual"]:
        raise RuntimeError("optimum-intel has no EAGLE-3 layer with norm_before_residual")
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in load_file(eagle / "model.safetensors").items()
    }
    layer, count = config["transformer_layer_config"], config["draft_vocab_size"]
    if count == layer["vocab_size"]:
        tensors |= {"d2t": torch.zeros(count, dtype=torch.long), "t2d": torch.ones(count, dtype=torch.bool)}
    out.mkdir(parents=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tokens = json.loads((target / "config.json").read_text())
    special = {name: tokens[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    fields = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": count, "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(layer | special | fields))
    return " ".join(str(index - 1) for index in config["eagle_aux_hidden_state_layer_ids"])
