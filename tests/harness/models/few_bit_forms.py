"""Forms of quantised checkpoints whose weights become another type, or whose tools need not be installed: written as
llm-compressor, ModelOpt, bitsandbytes, torchao and others do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from torch import nn

from tests.harness.models.quantised_checkpoint import FP8, Form, Layer, compressed, gptq

_MOST_E2M1, _MOST_E4M3 = 6.0, 448.0
_NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def compressed_fp4(format_name: str, group: int) -> Form:
    """NVFP4 or MXFP4 of compressed-tensors, whose own code quantises and packs. group: 16 or 32"""
    nvidia = group == 16
    weights: dict[str, Any] = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": group, "dynamic": False}
    weights["strategy"] = "tensor_group" if nvidia else "group"
    given = {**weights, "dynamic": "local" if nvidia else True}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": given}
    parsed = QuantizationScheme.model_validate(scheme)
    compressor = BaseCompressor.get_value_from_registry(format_name)
    config = {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**scheme, "output_activations": None, "format": format_name}},
        "ignore": ["lm_head"],
    }

    def quantise(weight: torch.Tensor) -> Layer:
        most = weight.unflatten(1, (-1, group)).abs().amax(-1)
        if not nvidia:
            powers = (most / _MOST_E2M1).log2().ceil().exp2()
            stored = compressor.compress({"weight": weight, "weight_scale": powers}, parsed)
            return Layer(stored, compressor.decompress(stored, parsed)["weight"].float())
        of_all = (_MOST_E2M1 * _MOST_E4M3 / most.max()).reshape(1)
        scales = (most / _MOST_E2M1 * of_all).to(FP8)
        given = {"weight": weight, "weight_scale": scales.float(), "weight_global_scale": of_all}
        stored = compressor.compress(given, parsed)
        numbers = unpack_fp4_from_uint8(stored["weight_packed"], *weight.shape, dtype=torch.float32)
        args = parsed.weights
        values = dequantize(x_q=numbers, scale=scales.float(), global_scale=of_all, args=args, dtype=torch.float32)
        return Layer({**stored, "input_global_scale": torch.tensor([20.0])}, values)

    return Form(config, quantise, "f16" if nvidia else "mxfp4")


def modelopt(algorithm: str) -> Form:
    """NVIDIA's ModelOpt. algorithm: "NVFP4", "FP8" or "MXFP8"."""
    config = {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.37.0"},
    }

    def fp8(weight: torch.Tensor) -> Layer:
        scale = weight.abs().max() / _MOST_E4M3
        floats = (weight / scale).to(FP8)
        stored = {"weight": floats, "weight_scale": scale, "input_scale": torch.tensor(0.02)}
        return Layer(stored, floats.float() * scale)

    def nvfp4(weight: torch.Tensor) -> Layer:
        parts = weight.unflatten(1, (-1, 16))
        most = parts.abs().amax(-1)
        of_all = most.max() / (_MOST_E2M1 * _MOST_E4M3)
        scales = (most / _MOST_E2M1 / of_all).to(FP8)
        whole = (scales.float() * of_all)[..., None]
        codes = _nearest(parts / whole, _NUMBERS).flatten(1)
        stored = {
            "weight": codes[:, ::2] | codes[:, 1::2] << 4,
            "weight_scale": scales,
            "weight_scale_2": of_all,
            "input_scale": torch.tensor(0.01),
        }
        values = _NUMBERS[codes.int()].unflatten(1, (-1, 16)) * whole
        return Layer(stored, values.flatten(1))

    def mxfp8(weight: torch.Tensor) -> Layer:
        powers = (weight.unflatten(1, (-1, 32)).abs().amax(-1) / _MOST_E4M3).log2().ceil()
        whole = powers.exp2().repeat_interleave(32, 1)
        floats = (weight / whole).to(FP8)
        return Layer({"weight": floats, "weight_scale": (powers + 127).to(torch.uint8)}, floats.float() * whole)

    if algorithm == "MXFP8":
        return Form(config, mxfp8, "fp8")
    return Form(config, nvfp4, "f16") if algorithm == "NVFP4" else Form(config, fp8, "fp8")


def _nearest(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The places of the numbers of a table that are nearest: uint8 [...]"""
    return (values[..., None] - table).abs().argmin(-1).to(torch.uint8)


_NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])  # fmt: skip
_FP4 = torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0, -0.0625, -8, -12, -4, -6, -2, -3]) / 12


def bits_and_bytes(kind: str, *, nested: bool) -> Form:
    """The forms of 4 bits of bitsandbytes. kind: "nf4" or "fp4". nested: whether scales are quantised, too"""
    table, block, of_scales = (_NF4 if kind == "nf4" else _FP4), 64, 256

    def quantise(weight: torch.Tensor) -> Layer:
        flat = weight.reshape(-1)
        parts = nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
        most = parts.abs().amax(1)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [*weight.shape]}
        stored = {"weight.absmax": most, "weight.quant_map": table}
        if nested:
            offset = most.mean().item()
            groups = nn.functional.pad(most - offset, (0, -len(most) % of_scales)).view(-1, of_scales)
            wholes, codes_table = groups.abs().amax(1), torch.linspace(-1, 1, 256)
            codes = _nearest(groups / wholes[:, None], codes_table)
            state |= {"nested_blocksize": of_scales, "nested_dtype": "float32", "nested_offset": offset}
            stored["weight.absmax"] = codes.flatten()[: len(most)]
            stored |= {"weight.nested_absmax": wholes, "weight.nested_quant_map": codes_table}
            most = (codes_table[codes.int()] * wholes[:, None]).flatten()[: len(most)] + offset
        numbers = _nearest(parts / most[:, None], table)
        values = (table[numbers.int()] * most[:, None]).flatten()[: len(flat)].view_as(weight)
        numbers = numbers.flatten()[: len(flat)]
        stored["weight"] = (numbers[::2] << 4 | numbers[1::2])[:, None]
        stored[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(json.dumps(state).encode())).byte()
        return Layer(stored, values)

    config = {
        "quant_method": "bitsandbytes",
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
    }
    return Form(config, quantise, "f16")


def _int8_by_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers, int8 [outputs, inputs], and the largest element of each output, float32 [outputs, 1]."""
    most = weight.abs().amax(1, keepdim=True)
    return (weight / most * 127).round().to(torch.int8), most


def llm_int8() -> Form:
    """The form of 8 bits of bitsandbytes."""

    def quantise(weight: torch.Tensor) -> Layer:
        integers, most = _int8_by_rows(weight)
        stored = {"weight": integers, "SCB": most[:, 0], "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return Layer(stored, integers.float() * (most / 127))

    config = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 6.0}
    return Form(config, quantise, "int8")


def torchao(kind: str) -> Form:
    """The forms of torchao. kind: a name of its classes of tensors."""

    def quantise(weight: torch.Tensor) -> Layer:
        inputs = weight.shape[1]
        if kind == "IntxUnpackedToInt8Tensor":
            parts = weight.unflatten(1, (-1, 32))
            scales = ((parts.amax(-1) - parts.amin(-1)) / 15).to(torch.bfloat16)
            zeros = (-8 - parts.amin(-1) / scales.float()).round().clamp(-8, 7).to(torch.int8)
            integers = ((parts / scales.float()[..., None]).round() + zeros[..., None]).clamp(-8, 7)
            values = (integers - zeros[..., None]) * scales.float()[..., None]
            own = {"qdata": integers.flatten(1).to(torch.int8), "scale": scales, "zero_point": zeros}
            return Layer({f"_weight_{name}": each for name, each in own.items()}, values.flatten(1))
        if kind == "Int4Tensor":  # as FBGEMM packs it
            parts = weight.unflatten(1, (-1, 32))
            least = parts.amin(-1)
            scales = (parts.amax(-1) - least) / 15
            integers = ((parts - least[..., None]) / scales[..., None]).round().clamp(0, 15) - 8
            zeros, scales = (least + 8 * scales).to(torch.bfloat16), scales.to(torch.bfloat16)
            values = integers * scales.float()[..., None] + zeros.float()[..., None]
            signed = integers.flatten(1).to(torch.int8)
            own = {"qdata": signed[:, ::2] & 15 | signed[:, 1::2] << 4, "scale": scales.t(), "zero_point": zeros.t()}
            return Layer({f"_weight_{name}": each for name, each in own.items()}, values.flatten(1))
        most = weight.abs().amax(1, keepdim=True)
        scales = (most / (_MOST_E4M3 if kind == "Float8Tensor" else 127)).to(torch.bfloat16).float()
        found = weight / scales
        numbers = found.to(FP8) if kind == "Float8Tensor" else found.round().clamp(-128, 127).to(torch.int8)
        assert numbers.shape[1] == inputs
        return Layer({"_weight_qdata": numbers, "_weight_scale": scales}, numbers.float() * scales)

    grouped = kind in ("IntxUnpackedToInt8Tensor", "Int4Tensor")
    note = {
        "_type": kind,
        "_data": {"block_size": [1, 32] if grouped else [1, 1 << 20]},
        "_tensor_data_names": ["qdata", "scale", *(["zero_point"] if grouped else [])],
    }
    config: Mapping[str, Any] = {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}},
    }
    weight_type = {"Float8Tensor": "fp8", "Int4Tensor": "f16"}.get(kind, "int8")
    return Form(config, quantise, weight_type, note)


def quanto() -> Form:
    """The form of 8 bits of optimum-quanto."""

    def quantise(weight: torch.Tensor) -> Layer:
        integers, most = _int8_by_rows(weight)
        scales = (most / 127).to(torch.bfloat16)
        return Layer({"weight._data": integers, "weight._scale": scales}, integers.float() * scales.float())

    return Form({"quant_method": "quanto", "weights": "int8", "activations": None}, quantise, "int8")


def bitnet(linear_class: str) -> Form:
    """The form of transformers' BitNet. linear_class: "bitlinear" or "autobitlinear"."""

    def quantise(weight: torch.Tensor) -> Layer:
        mean = weight.abs().mean()
        numbers = (weight / mean).round().clamp(-1, 1)
        moved, quarter = (numbers + 1).to(torch.uint8), len(weight) // 4
        packed = torch.zeros(quarter, weight.shape[1], dtype=torch.uint8)
        for place in range(4):
            packed |= moved[place * quarter : (place + 1) * quarter] << 2 * place
        multiplied = linear_class == "autobitlinear"
        scale = (mean if multiplied else 1 / mean).to(torch.bfloat16).reshape(1)
        values = numbers * (scale.float() if multiplied else 1 / scale.float())
        return Layer({"weight": packed, "weight_scale": scale}, values)

    config = {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": "offline"}
    return Form(config, quantise, "int4")


def single_fp8(scale_name: str, scale_of_inputs: str) -> Form:
    """The form "fp8" with a single scale for a weight, and one for its layer's inputs, as Mistral and AutoFP8 write."""

    def quantise(weight: torch.Tensor) -> Layer:
        scale = weight.abs().max() / _MOST_E4M3
        floats = (weight / scale).to(FP8)
        return Layer({"weight": floats, scale_name: scale, scale_of_inputs: torch.tensor(0.02)}, floats.float() * scale)

    return Form({"quant_method": "fp8", "activation_scheme": "static"}, quantise, "fp8")


def fbgemm_fp8() -> Form:
    """The form of FBGEMM."""

    def quantise(weight: torch.Tensor) -> Layer:
        scales = weight.abs().amax(1, keepdim=True) / _MOST_E4M3
        floats = (weight / scales).to(FP8)
        return Layer({"weight": floats, "weight_scale": scales}, floats.float() * scales)

    return Form({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, quantise, "fp8")


def auto_round() -> Form:
    """AutoRound's form, packed as AutoGPTQ's."""
    given = gptq()
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "data_type": "int"}
    config |= {"packing_format": "auto_round:auto_gptq", "iters": 200, "autoround_version": "0.9.0"}
    return Form(config, given.quantise, given.weight_type)


_STATIC = {"input_scale": torch.tensor([0.05], dtype=torch.bfloat16)}
FEW_BIT_FORMS: dict[str, Form] = {
    "NVFP4": compressed_fp4("nvfp4-pack-quantized", 16),
    "MXFP4 of compressed-tensors": compressed_fp4("mxfp4-pack-quantized", 32),
    "MXFP8": compressed(
        "mxfp8-quantized", "fp8", type="float", strategy="group", group_size=32, scale_dtype="torch.uint8"
    ),
    "FP8 static": compressed(
        "float-quantized", "fp8", type="float", strategy="tensor", activations=True, inputs=_STATIC
    ),
    "W8A8 static": compressed("int-quantized", "int8", strategy="channel", activations=True, inputs=_STATIC),
    "ModelOpt MXFP8": modelopt("MXFP8"),
    "ModelOpt FP8": modelopt("FP8"),
    "ModelOpt NVFP4": modelopt("NVFP4"),
    "NF4": bits_and_bytes("nf4", nested=True),
    "FP4": bits_and_bytes("fp4", nested=False),
    "LLM.int8": llm_int8(),
    "torchao int8": torchao("Int8Tensor"),
    "torchao int4": torchao("IntxUnpackedToInt8Tensor"),
    "torchao packed int4": torchao("Int4Tensor"),
    "torchao float8": torchao("Float8Tensor"),
    "quanto": quanto(),
    "BitNet": bitnet("bitlinear"),
    "BitNet by autobitlinear": bitnet("autobitlinear"),
    "FP8 of Mistral": single_fp8("weight_scale_inv", "activation_scale"),
    "FP8 of AutoFP8": single_fp8("weight_scale", "input_scale"),
    "MXFP8 by blocks": modelopt("MXFP8")._replace(config={"quant_method": "mxfp8", "weight_block_size": [1, 32]}),
    "FBGEMM FP8": fbgemm_fp8(),
    "AutoRound": auto_round(),
}
"""Forms by name."""
