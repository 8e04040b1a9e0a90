"""Writes quantised checkpoints as llm-compressor, AutoAWQ, AutoGPTQ and others do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

Tensors = dict[str, torch.Tensor]
FP8 = torch.float8_e4m3fn
_MOST_FP8 = 448.0
_NUMBERED = ("Lfm2MoeExperts", "MixtralExperts", "MiniMaxM2Experts", "PhimoeExperts")
_STORED = {
    "ernie4_5_moe": {"mlp.gate.moe_statics": "mlp.moe_statics"},
    "exaone_moe": {"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias"},
    "hy_v3": {
        r"mlp\.gate\.": "mlp.router.gate.",
        "mlp.e_score_correction_bias": "mlp.expert_bias",
        "mlp.shared_experts": "mlp.shared_mlp",
    },
    "laguna": {"mlp.gate.e_score": "mlp.experts.e_score", "mlp.shared_experts": "mlp.shared_expert"},
    "mimo_v2_flash": {"self_attn.sinks": "self_attn.attention_sink_bias"},
    "minimax_m2": {r"\.mlp\.": ".block_sparse_moe."},
    "mixtral": {r"\.mlp\.": ".block_sparse_moe."},
    "nemotron_h": {r"^model\.": "backbone."},
    "phimoe": {r"\.mlp\.router\.": ".block_sparse_moe.gate.", r"\.mlp\.": ".block_sparse_moe."},
}
"""Names of published checkpoints in place of those of transformers' modules."""


class Layer(NamedTuple):
    """A quantised linear layer."""

    stored: Tensors
    """By the names after that of the layer."""
    values: torch.Tensor
    """The values of the stored weight, float32 [outputs, inputs]."""


class Form(NamedTuple):
    """A form of quantised checkpoints."""

    config: Mapping[str, Any]
    """The quantization_config."""
    quantise: Callable[[torch.Tensor], Layer]
    """Quantises a weight, float32 [outputs, inputs]."""
    weight_type: str
    """The weights' type as models report it."""
    note: Mapping[str, Any] | None = None
    """What the file's header notes of each quantised weight."""


def write_quantised(
    directory: Path,
    model: PreTrainedModel,
    form: Form,
    *,
    change: Callable[[Tensors], None] | None = None,
    **changed: Any,
) -> Mapping[str, torch.Tensor]:
    """Writes a model, with all linear layers but the head quantised, or in MXFP4 its experts alone. Returns the values
    of the weights by layer, those of experts by parameter.

    change: of all tensors, before they are written. changed: fields of the quantization_config
    """
    directory.mkdir(parents=True, exist_ok=True)
    head = model.get_output_embeddings()
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    if getattr(model.config, "tie_word_embeddings", False):
        del tensors["lm_head.weight"]
    values = {}
    for name, module in model.named_modules():
        if type(module).__name__.endswith("Experts"):
            values |= _quantise_experts(tensors, name, type(module).__name__, form)
        elif type(module) is nn.Linear and module is not head and form.config["quant_method"] != "mxfp4":
            weight = tensors.pop(f"{name}.weight")
            layer = form.quantise(weight.float())
            values[name] = layer.values
            tensors |= {f"{name}.{own}": tensor for own, tensor in layer.stored.items()}
    for own, stored in _STORED.get(model.config.model_type, {}).items():
        tensors = {re.sub(own, stored, name): tensor for name, tensor in tensors.items()}
    if change is not None:
        change(tensors)
    notes = None if form.note is None else {f"{name}.weight": json.dumps(form.note) for name in values}
    whole = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(whole, directory / "model.safetensors", notes)
    config = {**model.config.to_diff_dict(), "architectures": [type(model).__name__], "dtype": "bfloat16"}
    config |= {"model_type": model.config.model_type, "quantization_config": {**form.config, **changed}}
    (directory / "config.json").write_text(json.dumps(config))
    return values


def with_values(model: PreTrainedModel, values: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """Gives a model the values of its quantised layers, in place, and rounds all others to bfloat16."""
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(tensor.to(torch.bfloat16))
        parameters = dict(model.named_parameters())
        for name, weight in values.items():
            (parameters[name] if name in parameters else parameters[f"{name}.weight"]).copy_(weight)
    return model


def _quantise_experts(tensors: Tensors, name: str, kind: str, form: Form) -> Tensors:
    """Replaces the experts of a layer by their quantised tensors; returns their values by parameter."""
    first = "up_proj" if kind == "NemotronHExperts" else "gate_up_proj"
    both, down = (tensors.pop(f"{name}.{own}").float() for own in (first, "down_proj"))
    if kind == "GptOssExperts":  # whose biases stay as they are
        values = {}
        for own, weight in (("gate_up_proj", both), ("down_proj", down)):
            layers = [form.quantise(each.t().contiguous()) for each in weight]
            for part in layers[0].stored:
                tensors[f"{name}.{own}_{part}"] = torch.stack([layer.stored[part] for layer in layers])
            values[f"{name}.{own}"] = torch.stack([layer.values.t() for layer in layers])
        return values
    names = ("w1", "w3", "w2") if kind in _NUMBERED else ("gate_proj", "up_proj", "down_proj")
    names = names if first == "gate_up_proj" else names[1:]
    found: list[list[torch.Tensor]] = [[] for _ in names]
    for index in range(len(both)):
        for place, weight in enumerate((*both[index].chunk(len(names) - 1), down[index])):
            layer = form.quantise(weight)
            found[place].append(layer.values)
            tensors |= {f"{name}.{index}.{names[place]}.{own}": each for own, each in layer.stored.items()}
    *firsts, downs = map(torch.stack, found)
    return {f"{name}.{first}": torch.cat(firsts, 1), f"{name}.down_proj": downs}


def _quantised(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> tuple[torch.Tensor, ...]:
    """Returns integers [outputs, inputs], scales, bfloat16 [outputs, groups], and zero points, from 0 on."""
    parts = weight.unflatten(1, (-1, group))
    most, middle = (1 << bits) - 1, 1 << (bits - 1)
    if symmetric:
        scales = (parts.abs().amax(-1) / (middle - 0.5)).to(torch.bfloat16)
        zeros = torch.full_like(scales, middle, dtype=torch.int32)
    else:
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scales = ((high - low) / most).to(torch.bfloat16)
        zeros = (-low / scales.float()).round().clamp(0, most).to(torch.int32)
    integers = (parts / scales.float()[..., None]).round() + zeros[..., None]
    return integers.clamp(0, most).flatten(1).to(torch.int32), scales, zeros


def _values(integers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    parts = integers.unflatten(1, (scales.shape[1], -1)) - zeros[..., None]
    return (parts.float() * scales.float()[..., None]).flatten(1)


def compressed(
    format_name: str,
    weight_type: str,
    *,
    activations: bool = False,
    inputs: Mapping[str, torch.Tensor] | None = None,
    **arguments: Any,
) -> Form:
    """A form of compressed-tensors, whose own code quantises and packs. inputs: static scales of a layer's inputs.
    arguments: of its QuantizationArgs"""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, **arguments}
    given = {"num_bits": 8, "type": weights["type"], "symmetric": True, "strategy": "token", "dynamic": True}
    if inputs is not None:
        given |= {"strategy": "tensor", "dynamic": False}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": given if activations else None}
    config = {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**scheme, "output_activations": None}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
        "global_compression_ratio": None,
        "version": "0.20.0",
    }
    parsed = QuantizationScheme.model_validate(scheme)
    compressor = BaseCompressor.get_value_from_registry(format_name)

    def quantise(weight: torch.Tensor) -> Layer:
        given: Tensors = {"weight": weight} | _parameters(weight, weights)
        stored = compressor.compress(given, parsed)
        if weights["symmetric"]:
            stored.pop("weight_zero_point", None)
        exact = {
            name: each.float() if name == "weight_scale" and each.is_floating_point() else each
            for name, each in stored.items()
        }
        values = compressor.decompress(exact, parsed)["weight"].float()
        return Layer({**stored, **(inputs or {})}, values)

    return Form(config, quantise, weight_type)


def _parameters(weight: torch.Tensor, weights: Mapping[str, Any]) -> Tensors:
    """Scales and zero points in the shapes that llm-compressor gives them."""
    outputs, inputs = weight.shape
    if weights["type"] == "float":
        rows, columns = weights.get("block_structure") or (outputs if weights["strategy"] == "tensor" else 1, inputs)
        columns = weights.get("group_size") or columns
        blocks = nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
        most = blocks.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).abs().amax((1, 3))
        scale = (most / _MOST_FP8).to(torch.bfloat16)
        if weights["strategy"] == "group":  # of MXFP8, powers of two
            scale = scale.float().log2().ceil().exp2()
        scale = scale.flatten() if weights["strategy"] == "tensor" else scale
        return {"weight_scale": scale, "weight_zero_point": torch.zeros_like(scale, dtype=FP8)}
    group = weights.get("group_size") or inputs
    flat = weight.reshape(1, -1) if weights["strategy"] == "tensor" else weight
    group = flat.shape[1] if weights["strategy"] == "tensor" else group
    _, scales, zeros = _quantised(flat, weights["num_bits"], group, weights["symmetric"])
    shape = (1,) if weights["strategy"] == "tensor" else scales.shape
    moved = (zeros - (1 << weights["num_bits"] - 1)).to(torch.int8)
    return {"weight_scale": scales.reshape(shape), "weight_zero_point": moved.reshape(shape)}


def awq(group: int = 32) -> Form:
    """AutoAWQ's form for matrix products."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def words(integers: torch.Tensor) -> torch.Tensor:
        """[n, outputs] -> [n, outputs / 8], as AutoAWQ's WQLinear_GEMM packs them."""
        found = torch.zeros(len(integers), integers.shape[1] // 8, dtype=torch.int32)
        for place, output in enumerate(order):
            found |= integers[:, output::8] << (4 * place)
        return found

    def quantise(weight: torch.Tensor) -> Layer:
        integers, scales, zeros = _quantised(weight, 4, group, symmetric=False)
        halves = scales.to(torch.float16)
        stored = {"qweight": words(integers.t()), "qzeros": words(zeros.t()), "scales": halves.t()}
        return Layer(stored, _values(integers, halves, zeros))

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return Form({**config, "modules_to_not_convert": None}, quantise, "int4")


def gptq(bits: int = 4, group: int = 32, version: int = 1, *, symmetric: bool = False, reordered: bool = False) -> Form:
    """AutoGPTQ's and GPTQModel's form. group: -1 for one per output. reordered: groups have inputs of all places"""

    def words(integers: torch.Tensor) -> torch.Tensor:
        """[n, m] -> [n * bits / 32, m], as AutoGPTQ's QuantLinear packs them."""
        per_word = 32 // bits
        found = torch.zeros(len(integers) // per_word, integers.shape[1], dtype=torch.int32)
        for place in range(per_word):
            found |= integers[place::per_word] << (bits * place)
        return found

    def quantise(weight: torch.Tensor) -> Layer:
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        order = torch.arange(inputs)
        if reordered:  # by how much inputs vary: all layers with the same inputs have the same order
            order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
        integers, scales, zeros = _quantised(weight[:, order], bits, size, symmetric)
        if version == 1:
            zeros = zeros.clamp(min=1)  # which stores one less
        halves = scales.to(torch.float16)
        place = order.argsort()
        stored = {
            "qweight": words(integers[:, place].t()),
            "qzeros": words(zeros - int(version == 1)).t(),
            "scales": halves.t(),
            "g_idx": (place // size).to(torch.int32),
        }
        return Layer(stored, _values(integers, halves, zeros)[:, place])

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": reordered, "sym": symmetric}
    name = {1: "gptq", 2: "gptq_v2"}[version]
    return Form({**config, "checkpoint_format": name, "lm_head": False}, quantise, f"int{bits}")


def fp8(block: tuple[int, int] = (128, 128)) -> Form:
    """The form of DeepSeek's and Qwen's checkpoints."""

    def quantise(weight: torch.Tensor) -> Layer:
        rows, columns = block
        outputs, inputs = weight.shape
        blocks = nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
        scales = blocks.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).abs().amax((1, 3)) / _MOST_FP8
        whole = scales.repeat_interleave(rows, 0)[:outputs].repeat_interleave(columns, 1)[:, :inputs]
        floats = (weight / whole).to(FP8)
        return Layer({"weight": floats, "weight_scale_inv": scales}, floats.float() * whole)

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": list(block)}
    return Form(config, quantise, "fp8")


def mxfp4() -> Form:
    """The form of gpt-oss."""

    def quantise(weight: torch.Tensor) -> Layer:
        kind = gguf.GGMLQuantizationType.MXFP4
        raw = gguf.quants.quantize(weight.numpy(), kind)
        blocks = torch.from_numpy(raw).unflatten(1, (-1, 17))
        numbers = torch.cat([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1)
        stored = {"blocks": numbers[..., ::2] | numbers[..., 1::2] << 4, "scales": blocks[..., 0].contiguous()}
        return Layer(stored, torch.from_numpy(gguf.quants.dequantize(raw, kind)))

    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    return Form(config, quantise, "mxfp4")


FORMS: dict[str, Form] = {
    "W4A16": compressed("pack-quantized", "int4", num_bits=4, strategy="group", group_size=32),
    "W4A16 asymmetric": compressed(
        "pack-quantized", "int4", num_bits=4, strategy="group", group_size=64, symmetric=False, actorder="static"
    ),
    "W4A16 by channel": compressed("pack-quantized", "int4", num_bits=4, strategy="channel", symmetric=False),
    "W8A16": compressed("pack-quantized", "int8", strategy="channel"),
    "W8A16 by tensor": compressed("pack-quantized", "int8", strategy="tensor"),
    "W8A8": compressed("int-quantized", "int8", strategy="channel", activations=True),
    "W8A8 asymmetric": compressed("int-quantized", "int8", strategy="channel", symmetric=False, activations=True),
    "W8A8 by tensor": compressed("int-quantized", "int8", strategy="tensor", activations=True),
    "naive int8": compressed("naive-quantized", "int8", strategy="group", group_size=32),
    "FP8 by channel": compressed("float-quantized", "fp8", type="float", strategy="channel", activations=True),
    "FP8 by tensor": compressed("float-quantized", "fp8", type="float", strategy="tensor", activations=True),
    "FP8 by block": compressed(
        "float-quantized", "fp8", type="float", strategy="block", block_structure=[128, 128], activations=True
    ),
    "AWQ": awq(),
    "GPTQ": gptq(),
    "GPTQ version 2": gptq(version=2),
    "GPTQ reordered": gptq(reordered=True),
    "GPTQ of 8 bits": gptq(bits=8, group=-1, symmetric=True),
    "FP8": fp8(),
}
"""Forms by name."""
