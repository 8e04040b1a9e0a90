"""The changes that llama.cpp's converter makes to the parameters of transformers, each as its inverse.

Parts, the tensors of the file, come as [..., rows, values of a row], or as [..., rows, bytes of a row] while they stay
in their blocks; a vector as [values, 1], or as [values, bytes of a value].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

Shape = tuple[int, ...]


class GgufChange:
    """No change."""

    interleaved = False
    """Whether the parameter has the rows of its two parts in turn, rather than one part after the other."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the tensors in the file that a parameter of this shape becomes."""
        return (shape,)

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """The parameter; a caller gives the result the parameter's shape."""
        return parts[0]

    def keeps_blocks(self, type_name: str) -> bool:
        """Whether `undone` only moves rows or blocks of this type, so that bytes may stand for values."""
        return True


SAME = GgufChange()


@dataclass(frozen=True, slots=True)
class Permuted(GgufChange):
    """The two halves of each head are interleaved, since llama.cpp rotates neighbouring values."""

    head: int
    """Values of a head."""

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        (rows,) = parts
        return rows.view(-1, self.head // 2, 2, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)


@dataclass(frozen=True, slots=True)
class Added(GgufChange):
    """A number is added to all values: 1 to the weights of norms that multiply by 1 + weight."""

    number: float

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return parts[0] - self.number

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return False


@dataclass(frozen=True, slots=True)
class Reshaped(GgufChange):
    """A vector is a matrix, or a dimension of 1 in the middle is dropped."""

    to: Shape
    """The shape in the file; -1 for what the parameter's size gives."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return (tuple(torch.empty(shape, device="meta").view(self.to).shape),)


class Squeezed(GgufChange):
    """The middle dimension of a convolution, which is 1, is dropped."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((shape[0], shape[2]),)


@dataclass(frozen=True, slots=True)
class NegativeExponential(GgufChange):
    """The logarithm of a decay is the negative decay."""

    column: bool = False
    """Whether the vector is a column."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((*shape, 1) if self.column else shape,)

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return (-parts[0]).log()

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return False


class Halved(GgufChange):
    """The first half of the rows is a tensor of its own, and the second half is another."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((*shape[:-2], shape[-2] // 2, shape[-1]),) * 2

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return torch.cat(list(parts), dim=-2)


class Transposed(GgufChange):
    """The last two dimensions are exchanged, so that rows are outputs."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((*shape[:-2], shape[-1], shape[-2]),)

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return parts[0].transpose(-1, -2)

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return False


class TransposedAndDealt(GgufChange):
    """Rows are outputs, and every other one belongs to another tensor."""

    interleaved = True

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((*shape[:-2], shape[-1] // 2, shape[-2]),) * 2

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return torch.stack(list(parts), dim=-2).flatten(-3, -2).transpose(-1, -2)

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return False


class Dealt(GgufChange):
    """Every other value of a row belongs to another tensor."""

    interleaved = True

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((*shape[:-1], shape[-1] // 2),) * 2

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return torch.stack(list(parts), dim=-1).flatten(-2)

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return False


@dataclass(frozen=True, slots=True)
class Stacked(GgufChange):
    """Several parameters are one tensor."""

    index: int
    """The number of this one among them."""
    count: int

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((self.count, *shape),)

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return parts[0][self.index]


@dataclass(frozen=True, slots=True)
class Joined(GgufChange):
    """The rows of several parameters are one tensor."""

    first: int
    """The first row of this one, in the tensor."""
    whole: int
    """Rows of the tensor."""
    rows: int
    """Rows of this one."""
    within: GgufChange
    """The change that came before."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return ((self.whole, *shape[1:]),)

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        return self.within.undone([parts[0][self.first : self.first + self.rows]])

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return self.within.keeps_blocks(type_name)


@dataclass(frozen=True, slots=True)
class Unfolded(GgufChange):
    """The expansion of compressed keys and values is a tensor for keys, transposed, and one for values."""

    heads: int
    key: int
    """Values of a head's keys that are not rotated."""
    value: int
    """Values of a head's values."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return (self.heads, shape[1], self.key), (self.heads, self.value, shape[1])

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        keys, values = parts
        return torch.cat([keys.transpose(1, 2), values], dim=1).flatten(0, 1)

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return False


@dataclass(frozen=True, slots=True)
class GroupedByKind(GgufChange):
    """Rows that are grouped by key head, with those of queries, keys, values and gates in each group, are grouped by
    kind instead; the gates are a tensor of their own."""

    heads: int
    """Key heads."""
    key: int
    """Rows of a head's queries, and of its keys."""
    value: int
    """Rows of a head's values, and of its gates."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        gates = self.heads * self.value
        return (shape[0] - gates, *shape[1:]), (gates, *shape[1:])

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        rows, gates = parts
        keys = self.heads * self.key
        kinds = (*rows.split([keys, keys, self.heads * self.value]), gates)
        return torch.cat([kind.view(self.heads, -1, kind.shape[-1]) for kind in kinds], dim=1).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Tiled(GgufChange):
    """Value heads, which follow each other by key head, begin with the first one of each key head."""

    key_heads: int
    value_heads: int
    offset: int = 0
    """Rows before those of the value heads, which stay."""
    within: GgufChange = SAME
    """The change that came before."""

    def shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """As in the base class."""
        return self.within.shapes(shape)

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        rows = self.within.undone(parts)
        stay, move = rows[: self.offset], rows[self.offset :]
        shared = self.value_heads // self.key_heads
        moved = move.view(shared, self.key_heads, -1, rows.shape[-1]).transpose(0, 1).reshape(move.shape)
        return torch.cat([stay, moved]) if self.offset else moved

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        return self.within.keeps_blocks(type_name)


@dataclass(frozen=True, slots=True)
class TiledColumns(GgufChange):
    """As `Tiled`, for the values of each row."""

    key_heads: int
    value_heads: int
    head: int
    """Values of a head."""

    def undone(self, parts: Sequence[Tensor]) -> Tensor:
        """As in the base class."""
        (rows,) = parts
        shared = self.value_heads // self.key_heads
        return rows.view(len(rows), shared, self.key_heads, -1).transpose(1, 2).reshape(rows.shape)

    def keeps_blocks(self, type_name: str) -> bool:
        """As in the base class."""
        values, _ = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
        return self.head % values == 0
