"""Widen the feed-forward layers of a published checkpoint without changing what it computes.

    python -m models.widen gemma-3-270m-q4_k_m.gguf /tmp/gemma3-2b --parameters 2B

A small model then costs what a large one costs, and a drafter agrees with it as often as before. inflate.py does so for
the bundled models, with more dimensions and layers as well; here any decoder with gated feed-forward layers will do.

The additional rows of gate and up, and columns of down, are zeros: such a dimension adds act(0) * 0 * 0 = 0 for each
activation that is finite at 0. They are written and multiplied as any others are. The model can be a directory with a
`model.safetensors` file, or a GGUF file, whose quantised weights are expanded. The result has bfloat16 weights.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from draftwire_core.engine.text.tokenizer import Tokenizer
from models.filler import Filler
from models.inflate import read_count

_STEP = 256
"""Multiple that wide feed-forward layers are of: superblocks of quantised weights have 256 inputs."""
_FEED_FORWARD = re.compile(r"layers\.\d+\.mlp\.(gate|up|down)_proj\.(\w+)\Z")


def choose_width(config: PreTrainedConfig, weights: dict[str, Tensor], parameters: int) -> int:
    """The width of the feed-forward layers with which a model has about `parameters` parameters.

    Raises ValueError for fewer parameters than it has, and for a model that can not be widened.
    """
    found = sorted(match[0] for name in weights if (match := _FEED_FORWARD.search(name)))
    layers = config.num_hidden_layers
    expected = [f"layers.{n}.mlp.{part}_proj.weight" for n in range(layers) for part in ("gate", "up", "down")]
    if found != sorted(expected):
        raise ValueError("the model has not, in each layer, one gated feed-forward block without biases")
    own = sum(value.numel() for value in weights.values())
    if parameters < own:
        raise ValueError(f"{parameters} parameters are fewer than the {own} it has")
    exact = config.intermediate_size + (parameters - own) / (3 * config.hidden_size * layers)
    return max(int(config.intermediate_size), round(exact / _STEP) * _STEP)


def widen(weights: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """The weights of a model with the outputs of `weights`, and feed-forward layers of a larger width."""
    widened = dict(weights)
    for name, value in weights.items():
        if match := _FEED_FORWARD.search(name):
            rows, columns = (len(value), width) if match[1] == "down" else (width, value.shape[1])
            widened[name] = Filler(0, value.dtype).zero(rows, columns, value)
    return widened


def write_widened(model: str | Path, out_dir: str | Path, parameters: int) -> int:
    """Write to `out_dir` a model of about `parameters` parameters with the outputs and tokenizer of `model`, in
    bfloat16; returns the width of its feed-forward layers. Raises ValueError; see choose_width."""
    source, out = Path(model), Path(out_dir)
    if source.suffix == ".gguf":
        # Imported here because it needs the package gguf, which benchmarks of other models run without.
        from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile

        file = GgufFile.open(source)
        config = file.config()
        weights = {name: each.dequantised().to(torch.bfloat16) for name, each in file.tensors.items()}
    else:
        config = AutoConfig.from_pretrained(source)
        weights = {name: value.to(torch.bfloat16) for name, value in load_file(source / "model.safetensors").items()}
    width = choose_width(config, weights, parameters)
    config.intermediate_size, config.dtype = width, torch.bfloat16
    out.mkdir(parents=True, exist_ok=True)
    save_file(widen(weights, width), out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
    config.save_pretrained(out)
    Tokenizer.load(str(source)).save(out)
    return width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parameters", type=read_count, default=2_000_000_000, help="for example 2B, the default")
    options = parser.parse_args()
    try:
        width = write_widened(options.model, options.out, options.parameters)
    except ValueError as error:
        parser.error(str(error))
    print(f"feed-forward layers of {width}")


if __name__ == "__main__":
    main()
