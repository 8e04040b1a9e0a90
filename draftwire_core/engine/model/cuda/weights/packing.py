"""Weights of checkpoints, and new ones of few bits, in the form of the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.kernels.products.gemm_blocks import BLOCK, FORMATS, BlockType
from draftwire_core.engine.model.cuda.weights.device_weight import Code, DeviceWeight, DeviceWeightError, joined
from draftwire_core.engine.model.linear.block_weight import BlockWeight, in_blocks
from draftwire_core.engine.model.linear.float8_weight import Float8Weight
from draftwire_core.engine.model.linear.group_weight import GroupWeight
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight
from draftwire_core.engine.model.linear.mxfp4_weight import Mxfp4Weight

_OUTPUTS_AT_ONCE = 4096
"""Outputs that are unpacked at once, which bounds the host's memory for them."""
_GROUP = 64
"""Inputs that share a scale in new 4-bit weights."""
_OF_BLOCKS: dict[BlockType, tuple[Code, int, torch.dtype]] = {
    "q8_0": ("int8", 128, torch.float16),
    "q4_0": ("int4", 8, torch.float16),
    "q4_1": ("int4", 0, torch.float16),
    "q5_0": ("int5", 16, torch.float16),
    "q5_1": ("int5", 0, torch.float16),
    "q4_k": ("int4", 0, torch.uint8),
    "q5_k": ("int5", 0, torch.uint8),
    "q6_k": ("int6", 32, torch.int8),
    "mxfp4": ("fp4", 0, torch.bfloat16),
}
"""The kind of code, the zero point and the type of scales, by the type of blocks."""


def stored_on(device: torch.device, weight: QuantisedWeight) -> DeviceWeight:
    """Packs a checkpoint's weight for a device. Raises DeviceWeightError."""
    if isinstance(weight, Mxfp4Weight):
        weight = weight.in_blocks()
    parts = [
        _some(weight, first, min(first + _OUTPUTS_AT_ONCE, weight.outputs)).to(device)
        for first in range(0, weight.outputs, _OUTPUTS_AT_ONCE)
    ]
    whole = joined(parts)
    assert whole is not None, "parts of one weight"
    return whole


def narrowed_on(device: torch.device, weight: Tensor, weights: Weights) -> DeviceWeight:
    """Quantises a weight, bfloat16 [outputs, inputs]: q8_0 and q4_0 as GGUF does, int8 with a scale per output, int4
    with a scale and a zero point per 64 inputs of an output. Raises DeviceWeightError."""
    if weights == "q8_0" or weights == "q4_0":
        if weight.shape[1] % FORMATS[weights].inputs:
            raise DeviceWeightError(f"{weight.shape[1]} inputs are not a multiple of {FORMATS[weights].inputs}")
        return stored_on(device, BlockWeight(weights, in_blocks(weight.cpu(), weights)))
    values = weight.float()
    if weights == "int8":
        scales = (values.abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        codes = (values / scales).round() + 128
        return DeviceWeight.of("int8", codes.to(torch.uint8), scales, 128, group=weight.shape[1]).to(device)
    if weight.shape[1] % _GROUP:
        raise DeviceWeightError(f"{weight.shape[1]} inputs are not a multiple of {_GROUP}")
    groups = values.unflatten(1, (-1, _GROUP))
    lowest, highest = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scales = ((highest - lowest) / 15).clamp(min=torch.finfo(torch.float32).tiny)
    zeros = (-lowest / scales).round().clamp(0, 15)
    codes = ((groups / scales.unsqueeze(2)).round() + zeros.unsqueeze(2)).clamp(0, 15).flatten(1)
    return DeviceWeight.of("int4", codes.to(torch.uint8), scales, zeros.to(torch.uint8), group=_GROUP).to(device)


def _some(weight: QuantisedWeight, first: int, last: int) -> DeviceWeight:
    """The outputs from `first` to `last` - 1, on the host."""
    if isinstance(weight, GroupWeight):
        integers, scales, zeros = weight.rows(first, last)
        return DeviceWeight.of(
            "int4" if weight.bits == 4 else "int8", integers, scales, zeros, group=weight.group, order=weight.order
        )
    if isinstance(weight, Float8Weight):
        floats, scales = weight.rows(first, last)
        return DeviceWeight.of("fp8", floats.view(torch.uint8), scales, 0, group=weight.group)
    if isinstance(weight, BlockWeight) and weight.kind in _OF_BLOCKS:
        return _of_blocks(weight.kind, weight.raw[first:last])
    raise DeviceWeightError(f"weights of type {weight.type_name} run on CPUs only")


def _of_blocks(kind: BlockType, raw: Tensor) -> DeviceWeight:
    """A weight in blocks, uint8 [outputs, bytes of a row], whose integers lie as the kernels read them."""
    form, (code, zero, scale_type) = FORMATS[kind], _OF_BLOCKS[kind]
    parts = form.parts(raw.unflatten(1, (-1, form.size)))
    codes = (parts.lines ^ 0x80 if kind == "q8_0" else parts.lines).flatten(1).contiguous()
    inputs = parts.scales.shape[1] * BLOCK
    fields = _powers(parts.scales) if kind == "mxfp4" else parts.scales.contiguous()
    fields = fields.view(scale_type).squeeze(3)
    units = None if parts.supers is None else parts.supers.contiguous().view(torch.float16).squeeze(3)
    if kind == "q6_k":  # two scales a block, and one unit
        assert units is not None
        units = units[:, :, 0].unsqueeze(1).contiguous()
        return DeviceWeight(code, inputs, BLOCK // 2, codes, fields.flatten(1), zero, units=units)
    if units is not None:  # least values are subtracted
        units = torch.stack([units[:, :, 0], -units[:, :, 1]], 1)
    scales, *offsets = (each.contiguous() for each in fields.unbind(2))
    return DeviceWeight(code, inputs, BLOCK, codes, scales, zero, offsets=offsets[0] if offsets else None, units=units)


def _powers(exponents: Tensor) -> Tensor:
    """Powers of two by their exponents plus 127, uint8 [..., 1]: the bytes of bfloat16 numbers, uint8 [..., 2]."""
    bits = exponents.to(torch.int32) << 7
    return bits.masked_fill(bits == 0, 1 << 6).to(torch.int16).view(torch.uint8)  # 2^-127 is denormal
