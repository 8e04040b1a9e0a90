"""Rows times a weight quantised in blocks, in compiled code, for few rows (`csrc/products/gemm_blocks.c`).

Weights come in the formats of GGUF, as uint8 [outputs, bytes of a row], and are packed once without changing a value.
The kernel reads them at memory bandwidth. It gives a row the same bits whatever the number of rows, on every processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import nn

from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages
from draftwire_core.engine.kernels.library import library, loaded
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.structs import WEIGHT_TYPES

BlockType = Literal["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "mxfp4"]
"""The types of weights in blocks."""

BLOCK = 32
"""Inputs per block."""
SUPERBLOCK = 256
"""Inputs per superblock of the types whose names end in k."""
_BLOCKS = SUPERBLOCK // BLOCK
_GROUP = 16
"""Outputs per group of a packed weight; the last group is padded with zeros."""
_LINE = 64
"""Bytes of a line of a packed weight."""
_STEP = 4
"""Inputs of an output that follow each other in a packed weight."""
_BYTES_AT_ONCE = 1 << 20
"""Bytes of a weight that are packed at once."""


class Parts(NamedTuple):
    """The parts of a packed weight's superblocks, uint8."""

    scales: torch.Tensor
    """[outputs, blocks, fields, bytes of a field]"""
    lines: torch.Tensor
    """The quants, [outputs, blocks, lines, _STEP]."""
    supers: torch.Tensor | None = None
    """[outputs, superblocks, fields, bytes of a field]; None unless a superblock has scales of its own."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of GGUF."""

    inputs: int
    """Inputs per unit of the format: a block or a superblock."""
    size: int
    """Bytes per unit."""
    parts: Callable[[torch.Tensor], Parts]
    """Splits units, uint8 [outputs, units, size]."""


def _lines(units: torch.Tensor) -> torch.Tensor:
    """Splits bytes [outputs, blocks, n * 16 or 32] into steps, [outputs, blocks, lines, _STEP]."""
    return units.unflatten(-1, (-1, _STEP))


def _fields(*fields: torch.Tensor) -> torch.Tensor:
    """Stacks fields [outputs, blocks, bytes each] to [outputs, blocks, fields, bytes each]."""
    return torch.stack(fields, 2)


def _q8_0(units: torch.Tensor) -> Parts:
    return Parts(_fields(units[..., :2]), _lines(units[..., 2:]))


def _q4_0(units: torch.Tensor) -> Parts:
    return Parts(_fields(units[..., :2]), _lines(units[..., 2:]))


def _q4_1(units: torch.Tensor) -> Parts:
    return Parts(_fields(units[..., :2], units[..., 2:4]), _lines(units[..., 4:]))


def _fifth_bits(bits: torch.Tensor) -> torch.Tensor:
    """Packs the fifth bits of blocks, [outputs, blocks, 32], as a line: [outputs, blocks, 1, _STEP]."""
    steps = bits.unflatten(-1, (8, _STEP))
    return (steps << torch.arange(8, dtype=torch.uint8)[:, None]).sum(2, keepdim=True, dtype=torch.uint8)


def _q5_0(units: torch.Tensor) -> Parts:
    bits = units[..., 2:6, None] >> torch.arange(8, dtype=torch.uint8) & 1  # bit b of byte i is of input 8 i + b
    return Parts(_fields(units[..., :2]), torch.cat([_fifth_bits(bits.flatten(2)), _lines(units[..., 6:])], 2))


def _q5_1(units: torch.Tensor) -> Parts:
    return Parts(_fields(units[..., :2], units[..., 2:4]), _q5_0(units[..., 2:]).lines)


def _mxfp4(units: torch.Tensor) -> Parts:
    return Parts(_fields(units[..., :1]), _lines(units[..., 1:]))


def _nibbles(values: torch.Tensor) -> torch.Tensor:
    """Packs the low 4 bits of values [outputs, blocks, 32]: of input i in the low half, of i + 16 in the high half."""
    low = values & 15
    return _lines(low[..., :16] | low[..., 16:] << 4)


def _in_blocks(units: torch.Tensor) -> torch.Tensor:
    """[outputs, superblocks, 256, ...] -> [outputs, blocks, 32, ...]"""
    return units.unflatten(2, (_BLOCKS, BLOCK)).flatten(1, 2)


def _scales_k(packed: torch.Tensor) -> torch.Tensor:
    """Scales and least values of Q4_K and Q5_K, of 6 bits in 12 bytes: [outputs, superblocks, 12] -> [outputs, blocks,
    2, 1]."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = torch.cat([first & 63, third & 15 | first >> 6 << 4], -1)
    least = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    return _fields(scale.flatten(1, 2)[..., None], least.flatten(1, 2)[..., None])


def _chunks(quants: torch.Tensor) -> torch.Tensor:
    """The 4-bit values of Q4_K and Q5_K, [outputs, superblocks, 128] -> [outputs, superblocks, 256]: of each 32 bytes
    the low halves, then the high ones."""
    chunks = quants.unflatten(-1, (4, BLOCK))
    return torch.stack([chunks & 15, chunks >> 4], 3).flatten(2)


def _q4_k(units: torch.Tensor) -> Parts:
    values = _in_blocks(_chunks(units[..., 16:]))
    return Parts(_scales_k(units[..., 4:16]), _nibbles(values), _fields(units[..., :2], units[..., 2:4]))


def _q5_k(units: torch.Tensor) -> Parts:
    values = _in_blocks(_chunks(units[..., 48:]))
    # Bit b of byte i is the fifth bit of input i of block b of the superblock.
    bits = units[..., 16:48, None] >> torch.arange(8, dtype=torch.uint8) & 1
    high = _fifth_bits(bits.transpose(2, 3).flatten(1, 2))
    supers = _fields(units[..., :2], units[..., 2:4])
    return Parts(_scales_k(units[..., 4:16]), torch.cat([high, _nibbles(values)], 2), supers)


def _q6_k(units: torch.Tensor) -> Parts:
    low = units[..., :128].unflatten(-1, (2, 2, BLOCK))
    low = torch.stack([low & 15, low >> 4], 3).flatten(2)
    moved = units[..., 128:192].unflatten(-1, (2, 1, BLOCK)) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    upper = _in_blocks((moved & 3).flatten(2)).unflatten(-1, (2, 4, _STEP))
    high = (upper << torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]).sum(3, dtype=torch.uint8)
    scales = units[..., 192:208].unflatten(-1, (8, 2)).flatten(1, 2)
    supers = _fields(units[..., 208:], torch.zeros_like(units[..., 208:]))  # so that quants begin with a cache line
    return Parts(scales[..., None], torch.cat([high, _nibbles(_in_blocks(low))], 2), supers)


FORMATS: dict[BlockType, BlockFormat] = {
    "q8_0": BlockFormat(BLOCK, 34, _q8_0),
    "q4_0": BlockFormat(BLOCK, 18, _q4_0),
    "q4_1": BlockFormat(BLOCK, 20, _q4_1),
    "q5_0": BlockFormat(BLOCK, 22, _q5_0),
    "q5_1": BlockFormat(BLOCK, 24, _q5_1),
    "q4_k": BlockFormat(SUPERBLOCK, 144, _q4_k),
    "q5_k": BlockFormat(SUPERBLOCK, 176, _q5_k),
    "q6_k": BlockFormat(SUPERBLOCK, 210, _q6_k),
    "mxfp4": BlockFormat(BLOCK, 17, _mxfp4),
}


def _grouped(form: BlockFormat, weight: torch.Tensor) -> torch.Tensor:
    """Packs outputs, uint8 [a multiple of _GROUP, bytes of a row]: uint8 [groups, bytes]."""
    parts = form.parts(weight.unflatten(1, (-1, form.size)))
    scales, quants = _side_by_side(parts.scales), _side_by_side(parts.lines)
    missing, per_line = -scales.shape[1] % _BLOCKS, _LINE // scales.shape[2]
    lines = [
        nn.functional.pad(part, (0, 0, 0, missing)).unflatten(1, (-1, _BLOCKS // per_line, per_line)).flatten(3)
        for part in (scales, quants)
    ]
    superblocks = torch.cat(lines, 3).flatten(2)  # [groups, superblocks, bytes]
    if parts.supers is not None:
        superblocks = torch.cat([_side_by_side(parts.supers), superblocks], 2)
    groups = superblocks.flatten(1)
    return groups[:, : groups.shape[1] - missing * quants.shape[2] - missing // per_line * _LINE]


def _side_by_side(part: torch.Tensor) -> torch.Tensor:
    """Places the bytes of a group's outputs side by side: [outputs, units, lines, bytes] -> [groups, units, bytes]"""
    return part.unflatten(0, (-1, _GROUP)).permute(0, 2, 3, 1, 4).flatten(2)


def packed(kind: BlockType, weight: torch.Tensor) -> torch.Tensor:
    """Packs a weight as `csrc/products/gemm_blocks.c` describes.

    weight: uint8 [outputs, bytes of a row]. Returns uint8 [groups, bytes].
    """
    form = FORMATS[kind]
    outputs, width = weight.shape
    size = _grouped(form, weight.new_zeros(_GROUP, width)).shape[1]
    found = empty_in_huge_pages((-(-outputs // _GROUP), size), torch.uint8)
    # Few outputs at a time: unpacked values take much more memory than the weight.
    step = max(1, _BYTES_AT_ONCE // (_GROUP * width)) * _GROUP
    for first in range(0, outputs, step):
        some = weight[first : first + step]
        some = nn.functional.pad(some, (0, 0, 0, -len(some) % _GROUP))
        found[first // _GROUP : (first + len(some)) // _GROUP] = _grouped(form, some)
    return found


def block_values(kind: BlockType, weight: torch.Tensor) -> torch.Tensor:
    """The values of a weight, uint8 [outputs, bytes of a row]: bfloat16 [outputs, inputs]. Needs the library."""
    form = FORMATS[kind]
    weight = weight.contiguous()
    units = weight.numel() // form.size
    found = torch.empty(len(weight), weight.shape[1] // form.size * form.inputs, dtype=torch.bfloat16)
    loaded().draftwire_block_values(
        weight.data_ptr(), found.data_ptr(), units, form.size, form.inputs, WEIGHT_TYPES.index(kind)
    )
    return found


def can_multiply_blocks(kind: BlockType, inputs: int) -> bool:
    """Whether `CompiledBlockGemm` supports weights of a type with this number of inputs on this machine."""
    return library() is not None and inputs % FORMATS[kind].inputs == 0


class CompiledBlockGemm(CompiledProduct):
    """The product of rows and a weight in blocks that is packed once."""

    def __init__(self, kind: BlockType, weight: torch.Tensor):
        """weight: uint8 [outputs, bytes of a row], supported by `can_multiply_blocks`"""
        form = FORMATS[kind]
        inputs = weight.shape[1] // form.size * form.inputs
        super().__init__(kind, packed(kind, weight), len(weight), inputs)
