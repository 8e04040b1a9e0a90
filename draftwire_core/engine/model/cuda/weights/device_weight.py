"""A weight of 4 to 8 bits as the kernels of `kernels/packed_product.py` read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from draftwire_core.engine.checkpoint.quantised.float4 import E2M1_VALUES

Code = Literal["fp8", "fp4", "int8", "int6", "int5", "int4"]
"""8-bit floats (e4m3), 4-bit floats (e2m1), or unsigned integers."""
BITS: dict[Code, int] = {"fp8": 8, "fp4": 4, "int8": 8, "int6": 6, "int5": 5, "int4": 4}
"""Bits of a code."""
MOST_BLOCK = 128
"""Most inputs of a block."""
LEAST_BLOCK = 32
"""Fewest inputs of a block: 16 of each half are the least inner size of a product."""
SUPERBLOCK = 256
"""Inputs that share a unit."""
_BY_OUTPUT = ("codes", "scales", "zeros", "offsets", "units")
"""The tensors that have a row for each output."""


class DeviceWeightError(Exception):
    """Raised for a weight that the kernels do not support; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWeight:
    """A weight [outputs, inputs], of values scale * (code - zero point) + offset."""

    kind: Code
    inputs: int
    group: int
    """Inputs that share a scale; the last ones may be fewer. Those of `int6` are half a block."""
    codes: Tensor
    """uint8 [outputs, inputs * bits / 8], block after block. Of 4 bits the low halves of a block's bytes are the first
    half of its inputs. Of 5 and 6 bits the lower 4 lie so, and the upper ones before them: in 4 bytes for 32 inputs, or
    for each 16, of which input i is in byte i mod 4, a lower i in lower bits."""
    scales: Tensor
    """[outputs, groups], of any float type; or integers, with units."""
    zeros: Tensor | int
    """Zero points, uint8 [outputs, groups], or a single one."""
    order: Tensor | None = None
    """int64 [inputs]: the inputs as the codes have them; None for their own order."""
    offsets: Tensor | None = None
    """As scales; None if there are none."""
    units: Tensor | None = None
    """By which integer scales, and then offsets, are to be multiplied: float16 [outputs, 1 or 2, inputs /
    SUPERBLOCK]."""

    @classmethod
    def of(
        cls,
        kind: Code,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | int,
        *,
        group: int,
        order: Tensor | None = None,
    ) -> DeviceWeight:
        """Packs a weight of 8 or 4 bits whose codes are one a byte, uint8 [outputs, inputs]. Raises
        DeviceWeightError."""
        inputs = codes.shape[1]
        block = block_of(inputs, group)
        if block < LEAST_BLOCK:
            raise DeviceWeightError(
                f"{inputs} inputs in groups of {group} are not blocks of {LEAST_BLOCK}, which the kernels need"
            )
        if kind == "int4":
            low, high = codes.unflatten(1, (-1, 2, block // 2)).unbind(2)
            codes = (low | (high << 4)).flatten(1)
        return cls(kind, inputs, group, codes.contiguous(), scales.contiguous(), zeros, order)

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return len(self.codes)

    @property
    def block(self) -> int:
        """Inputs that are multiplied at once: by the weight's shape alone."""
        return max(LEAST_BLOCK, block_of(self.inputs, self.group))

    @property
    def form(self) -> tuple[object, ...]:
        """All that weights have in common if they differ in nothing but outputs, order and values."""
        zero = None if isinstance(self.zeros, Tensor) else self.zeros
        return self.kind, self.inputs, self.group, self.scales.dtype, zero, self.offsets is None, self.units is None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs, inputs."""
        return self.outputs, self.inputs

    @property
    def device(self) -> torch.device:
        """The device of the weight's tensors."""
        return self.codes.device

    def to(self, device: torch.device) -> DeviceWeight:
        """The weight on a device."""
        order = None if self.order is None else self.order.to(device)
        return replace(self._changed(lambda tensor: tensor.to(device)), order=order)

    def part(self, first: int, last: int) -> DeviceWeight:
        """The outputs from `first` to `last` - 1, in the same memory."""
        return self._changed(lambda tensor: tensor[first:last])

    def _changed(self, change: Callable[[Tensor], Tensor]) -> DeviceWeight:
        """A weight of the tensors that `change` makes of those that have a row for each output."""
        tensors = {name: getattr(self, name) for name in _BY_OUTPUT}
        return replace(self, **{name: change(each) for name, each in tensors.items() if isinstance(each, Tensor)})

    def values(self, rows: Tensor) -> Tensor:
        """The values of some outputs, int64 [n] on its device: float32 [n, inputs]."""
        some = self._changed(lambda tensor: tensor[rows])
        numbers = some._numbers()
        numbers = numbers - (some._of_inputs(some.zeros) if isinstance(some.zeros, Tensor) else some.zeros)
        values = numbers * some._of_inputs(some._in_units(some.scales, 0))
        if some.offsets is not None:
            values = values + some._of_inputs(some._in_units(some.offsets, 1))
        return values if self.order is None else values[:, self.order.argsort()]

    def _numbers(self) -> Tensor:
        """The numbers of the codes, float32 [outputs, inputs]."""
        codes = self._codes()
        if self.kind == "fp4":
            return E2M1_VALUES.to(codes.device)[codes.int()]
        return codes.view(torch.float8_e4m3fn).float() if self.kind == "fp8" else codes.float()

    def _codes(self) -> Tensor:
        """The codes, one a byte: uint8 [outputs, inputs]."""
        bits = BITS[self.kind]
        if bits == 8:
            return self.codes
        upper, halves = self.codes.unflatten(1, (-1, self.block * bits // 8)).tensor_split([4 * (bits - 4)], 2)
        found = torch.cat([halves & 15, halves >> 4], 2)
        if bits > 4:
            steps = torch.arange(0, 8, bits - 4, dtype=torch.uint8, device=found.device)
            parts = upper.unflatten(2, (-1, 1, 4)) >> steps[:, None] & (1 << bits - 4) - 1
            found = found | parts.flatten(2) << 4
        return found.flatten(1)

    def _in_units(self, numbers: Tensor, field: int) -> Tensor:
        """Scales or offsets, float32 [outputs, groups]. field: of `units`"""
        if self.units is None:
            return numbers.float()
        units = self.units[:, field, :, None].float()
        return (numbers.unflatten(1, (-1, SUPERBLOCK // self.group)) * units).flatten(1)

    def _of_inputs(self, of_groups: Tensor) -> Tensor:
        return of_groups.repeat_interleave(self.group, 1, output_size=of_groups.shape[1] * self.group)[:, : self.inputs]


def joined(weights: Sequence[DeviceWeight]) -> DeviceWeight | None:
    """One weight with the outputs of all, in turn; None if they differ in more than these."""
    first = weights[0]
    if not all(alike(first, each) for each in weights[1:]):
        return None
    found = {name: [getattr(each, name) for each in weights] for name in _BY_OUTPUT}
    return replace(first, **{name: torch.cat(each) for name, each in found.items() if isinstance(each[0], Tensor)})


def block_of(inputs: int, group: int) -> int:
    """The largest power of two, up to MOST_BLOCK, that divides the inputs and those of a group."""
    common = math.gcd(inputs, group)
    return min(MOST_BLOCK, common & -common)


def alike(one: DeviceWeight, other: DeviceWeight) -> bool:
    """Whether two weights differ in nothing but outputs and their values."""
    if one.form != other.form:
        return False
    if one.order is None or other.order is None:
        return one.order is other.order
    return bool(torch.equal(one.order, other.order))
