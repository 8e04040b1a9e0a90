"""Grow a checkpoint without changing what it computes: a memory-bound target for benchmarks on a CPU.

    python -m models.inflate models/target /tmp/target-400m --parameters 400M
    python -m models.inflate models/target /tmp/target-400m --parameters 400M --heads heads /tmp/heads-400m

The bundled target is small enough to sit in a processor's cache, where a verification of eight tokens costs about
eight times as much as one; a model of realistic size reads its weights from memory, and verifies them for the price of
one. The grown model has that size and the small one's outputs:

- more hidden dimensions, in which the residual stream is zero throughout. RMSNorm then averages over more dimensions,
  for which its weights and epsilon are rescaled. The factor is a power of four, so that the rescaling is exact;
- more heads and wider feed-forward layers, whose results are multiplied by zero;
- more layers, which add zero to the residual stream.

Hybrids with gated delta nets grow in another way (hybrid_growth.py). Weights that cannot reach the output are random
numbers, so that the arithmetic is that of a real model. Activations are zero where the small model has no dimension,
which neither GEMM kernels nor memory traffic take notice of.

Medusa heads that were trained for the small model grow the same way, and guess what they guessed before.
"""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, LlamaConfig

from models.filler import Filler
from models.hybrid_growth import HybridShape, choose_hybrid, grow_hybrid, resize_hybrid

_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}
_DEPTH = 12  # layers; what a shape should be near, because a call's fixed costs grow with the depth
_MLP_RATIO = 8 / 3  # feed-forward width over hidden size, as in Llama
_MLP_STEP = 256
"""Multiple that wide feed-forward layers are of: superblocks of quantised weights have 256 inputs."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama: hidden size, layers, query and key/value heads, head dimension, feed-forward width."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int

    @classmethod
    def of(cls, config: LlamaConfig) -> Shape:
        return cls(
            config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads,
            config.head_dim, config.intermediate_size,
        )  # fmt: skip

    def attention_parameters(self) -> int:
        """Per layer, with the layer's two norms."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads) + 2 * self.hidden

    def parameters(self, embeddings: int) -> int:
        """Of the whole model; `embeddings` is the number of rows in all embedding tables."""
        layer = self.attention_parameters() + 3 * self.hidden * self.mlp
        return self.layers * layer + (embeddings + 1) * self.hidden


def choose_shape(small: Shape, parameters: int, embeddings: int, layers: int | None = None) -> Shape:
    """A shape of about `parameters` parameters that `small` fits into, neither very deep nor oddly proportioned.

    `embeddings` is the number of rows in all embedding tables. Raises ValueError where nothing fits.
    """
    if parameters < small.parameters(embeddings):
        raise ValueError(f"{parameters} parameters are fewer than the {small.parameters(embeddings)} it has")
    candidates: dict[float, Shape] = {}
    for factor in (1, 4, 16, 64):
        hidden, heads, kv_heads = small.hidden * factor, small.heads * factor, small.kv_heads * factor
        attention = Shape(hidden, 0, heads, kv_heads, small.head_dim, 0).attention_parameters()
        left = parameters - (embeddings + 1) * hidden
        depth = layers or max(small.layers, round(left / (attention + 3 * hidden * hidden * _MLP_RATIO)))
        exact = (left / depth - attention) / (3 * hidden)
        step = _MLP_STEP if exact > 4 * _MLP_STEP else 32
        mlp = round(exact / step) * step
        if mlp >= small.mlp and depth >= small.layers:
            oddness = abs(math.log(depth / _DEPTH)) + abs(math.log(mlp / hidden / _MLP_RATIO)) / 2
            candidates[oddness] = Shape(hidden, depth, heads, kv_heads, small.head_dim, mlp)
    if not candidates:
        raise ValueError(f"no shape with {parameters} parameters holds this model; try more")
    return candidates[min(candidates)]


def grow(
    weights: dict[str, Tensor], small: Shape, large: Shape, seed: int, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """The weights of a model of shape `large` with the outputs of `weights`, made on `device`."""
    fill = Filler(seed, weights["model.embed_tokens.weight"].dtype, device)
    grown = {
        "model.embed_tokens.weight": fill.zero(
            len(weights["model.embed_tokens.weight"]), large.hidden, weights["model.embed_tokens.weight"]
        ),
        "model.norm.weight": fill.norm(large.hidden, weights["model.norm.weight"]),
    }
    if "lm_head.weight" in weights:
        head = weights["lm_head.weight"]
        grown["lm_head.weight"] = fill.zero(len(head), large.hidden, head)
    queries, keys = large.heads * large.head_dim, large.kv_heads * large.head_dim
    for number in range(large.layers):
        old = {
            name.removeprefix(f"model.layers.{number}."): value
            for name, value in weights.items()
            if number < small.layers and name.startswith(f"model.layers.{number}.")
        }
        norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
        new = {name: fill.norm(large.hidden, old.get(name)) for name in norms}
        # Inputs beyond the small model's are zero, and outputs beyond its are dropped by the two that write the
        # residual stream: only those have to be zero outside the corner.
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            key = f"self_attn.{name}.weight"
            new[key] = fill.random(rows, large.hidden, old.get(key))
        for name in ("gate_proj", "up_proj"):
            key = f"mlp.{name}.weight"
            new[key] = fill.random(large.mlp, large.hidden, old.get(key))
        for key, columns in (("self_attn.o_proj.weight", queries), ("mlp.down_proj.weight", large.mlp)):
            new[key] = fill.zero(large.hidden, columns, old.get(key))
        grown |= {f"model.layers.{number}.{name}": value for name, value in new.items()}
    return grown


def resize(config: LlamaConfig, large: Shape) -> None:
    """Make the configuration of a model that of the same grown to shape `large`, in place."""
    config.rms_norm_eps *= config.hidden_size / large.hidden
    config.hidden_size, config.num_hidden_layers, config.intermediate_size = large.hidden, large.layers, large.mlp
    config.num_attention_heads, config.num_key_value_heads = large.heads, large.kv_heads


def inflate(
    model_dir: str | Path,
    out_dir: str | Path,
    parameters: int = 400_000_000,
    seed: int = 0,
    layers: int | None = None,
) -> Shape | HybridShape:
    """Write to `out_dir` a model of about `parameters` parameters with the outputs and tokenizer of `model_dir`.

    `layers` fixes the depth, which otherwise follows from the size. Raises ValueError for a model that is neither a
    plain Llama nor a Qwen3.5 with delta nets, without biases, and for sizes below the model's own.
    """
    source, out = Path(model_dir), Path(out_dir)
    config = AutoConfig.from_pretrained(source)
    if (
        config.model_type not in ("llama", "qwen3_5_text")
        or config.attention_bias
        or getattr(config, "mlp_bias", False)
    ):
        raise ValueError(f"{source} is neither a Llama checkpoint without biases nor a Qwen3.5")
    weights = load_file(source / "model.safetensors")
    large: Shape | HybridShape
    if config.model_type == "llama":
        small = Shape.of(config)
        large = choose_shape(small, parameters, config.vocab_size * (1 if config.tie_word_embeddings else 2), layers)
        grown = grow(weights, small, large, seed)
        resize(config, large)
    else:
        hybrid = HybridShape.of(config)
        large = choose_hybrid(hybrid, parameters, config.vocab_size, layers)
        grown = grow_hybrid(weights, hybrid, large, seed)
        resize_hybrid(config, large)
    out.mkdir(parents=True, exist_ok=True)
    save_file(grown, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
    config.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)
    return large


def grow_heads(tensors: dict[str, Tensor], hidden: int, seed: int) -> dict[str, Tensor]:
    """Medusa heads with the guesses of `tensors` for a model that has grown to `hidden` dimensions."""
    grown = {}
    fill = Filler(seed, next(iter(tensors.values())).dtype)
    for name, value in tensors.items():
        if name.endswith(".bias"):
            grown[name] = torch.cat([value, value.new_zeros(hidden - len(value))])
        elif name.endswith(".linear.weight"):
            weights = fill.random(hidden, hidden, value)
            weights[len(value) :, : len(value)] = 0  # dimensions beyond the small model's stay zero
            grown[name] = weights
        else:
            grown[name] = fill.random(len(value), hidden, value)
    return grown


def inflate_heads(heads_dir: str | Path, out_dir: str | Path, hidden: int, seed: int = 0) -> None:
    """Write to `out_dir` the Medusa heads of `heads_dir`, grown for a model of `hidden` dimensions."""
    source, out = Path(heads_dir), Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    name = "medusa_lm_head.safetensors"
    save_file(grow_heads(load_file(source / name), hidden, seed), out / name, metadata={"format": "pt"})
    (out / name).chmod(0o644)
    for path in source.iterdir():
        if path.name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(path, out / path.name)


def read_count(text: str) -> int:
    """A number of parameters such as 400M, 1.2B or 25000000."""
    scale = _SUFFIXES.get(text[-1:].upper())
    return int(float(text[:-1]) * scale) if scale else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parameters", type=read_count, default=400_000_000, help="for example 400M, the default")
    parser.add_argument("--layers", type=int, help="the number of layers; chosen by size when left out")
    parser.add_argument("--seed", type=int, default=0, help="of the weights that do not matter")
    parser.add_argument("--heads", type=Path, nargs=2, metavar=("HEADS", "OUT"), help="Medusa heads to grow with it")
    options = parser.parse_args()
    try:
        shape = inflate(options.model, options.out, options.parameters, options.seed, options.layers)
        print(shape)
        if options.heads:
            inflate_heads(*options.heads, shape.hidden, options.seed)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
