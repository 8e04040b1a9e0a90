"""A weight of 4 or 8 bits as the kernels of `kernels/packed_product.py` read it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Code = Literal["fp8", "int8", "int4"]
"""8-bit floats (e4m3), or unsigned integers."""
MOST_BLOCK = 128
"""Most inputs of a block."""
LEAST_BLOCK = 32
"""Fewest inputs of a block: 16 of each half are the least inner size of a product."""


class DeviceWeightError(Exception):
    """Raised for a weight that the kernels do not support; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWeight:
    """A weight [outputs, inputs], of values scale * (code - zero point)."""

    kind: Code
    inputs: int
    group: int
    """Inputs that share a scale; the last ones may be fewer."""
    codes: Tensor
    """uint8 [outputs, inputs]; of 4 bits [outputs, inputs / 2], in which the low bits of a block's bytes are the first
    half of its inputs."""
    scales: Tensor
    """[outputs, groups], of any float type."""
    zeros: Tensor | int
    """Zero points, uint8 [outputs, groups], or a single one."""
    order: Tensor | None = None
    """int64 [inputs]: the inputs as the codes have them; None for their own order."""

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
        """Packs a weight whose codes are one a byte, uint8 [outputs, inputs]. Raises DeviceWeightError."""
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
        """Inputs that are multiplied at once, and share a scale: by the weight's shape alone."""
        return block_of(self.inputs, self.group)

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
        zeros = self.zeros.to(device) if isinstance(self.zeros, Tensor) else self.zeros
        order = None if self.order is None else self.order.to(device)
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device), zeros=zeros, order=order)

    def part(self, first: int, last: int) -> DeviceWeight:
        """The outputs from `first` to `last` - 1, in the same memory."""
        zeros = self.zeros[first:last] if isinstance(self.zeros, Tensor) else self.zeros
        return replace(self, codes=self.codes[first:last], scales=self.scales[first:last], zeros=zeros)

    def values(self, rows: Tensor) -> Tensor:
        """The values of some outputs, int64 [n] on its device: float32 [n, inputs]."""
        codes = self.codes[rows]
        if self.kind == "int4":
            halves = codes.unflatten(1, (-1, 1, self.block // 2))
            codes = torch.cat([halves & 15, halves >> 4], 2).flatten(1)
        numbers = codes.view(torch.float8_e4m3fn).float() if self.kind == "fp8" else codes.float()
        if isinstance(self.zeros, Tensor):
            numbers = numbers - self._of_inputs(self.zeros[rows])
        else:
            numbers = numbers - self.zeros
        values = numbers * self._of_inputs(self.scales[rows].float())
        return values if self.order is None else values[:, self.order.argsort()]

    def _of_inputs(self, of_groups: Tensor) -> Tensor:
        return of_groups.repeat_interleave(self.group, 1, output_size=of_groups.shape[1] * self.group)[:, : self.inputs]


def joined(weights: Sequence[DeviceWeight]) -> DeviceWeight | None:
    """One weight with the outputs of all, in turn; None if they differ in more than these."""
    first = weights[0]
    if not all(alike(first, each) for each in weights[1:]):
        return None
    zeros = [each.zeros for each in weights if isinstance(each.zeros, Tensor)]
    return replace(
        first,
        codes=torch.cat([each.codes for each in weights]),
        scales=torch.cat([each.scales for each in weights]),
        zeros=torch.cat(zeros) if zeros else first.zeros,
    )


def block_of(inputs: int, group: int) -> int:
    """The largest power of two, up to MOST_BLOCK, that divides the inputs and those of a group."""
    common = math.gcd(inputs, group)
    return min(MOST_BLOCK, common & -common)


def alike(one: DeviceWeight, other: DeviceWeight) -> bool:
    """Whether two weights differ in nothing but outputs and their values."""
    kinds = [
        (
            each.kind,
            each.inputs,
            each.group,
            each.scales.dtype,
            None if isinstance(each.zeros, Tensor) else each.zeros,
            each.order is None,
        )
        for each in (one, other)
    ]
    if kinds[0] != kinds[1]:
        return False
    return one.order is None or other.order is None or bool(torch.equal(one.order, other.order))
