"""Each change is the inverse of what llama.cpp's converter does, whose steps are repeated here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from draftwire_core.engine.checkpoint.gguf.architectures.gguf_change import (
    SAME,
    Added,
    Dealt,
    GgufChange,
    GroupedByKind,
    Halved,
    NegativeExponential,
    Permuted,
    Reshaped,
    Squeezed,
    Stacked,
    Tiled,
    TiledColumns,
    Transposed,
    TransposedAndDealt,
    Unfolded,
)
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufParameter, GgufTensor


def permuted(rows: Tensor) -> Tensor:
    heads = rows.shape[0] // 8
    return rows.reshape(heads, 2, 4, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def tiled(values: Tensor, dim: int, size: int) -> Tensor:
    """Value heads of two key heads and three value heads each."""
    shape = list(values.shape)
    order = list(range(len(shape) + 2))
    order[dim], order[dim + 1] = order[dim + 1], order[dim]
    return values.reshape(*shape[:dim], 2, 3, size, *shape[dim + 1 :]).permute(order).reshape(shape)


def by_kind(rows: Tensor) -> list[Tensor]:
    q, k, v, z = rows.view(2, -1, rows.shape[-1]).split([4, 4, 6, 6], dim=1)
    return [torch.cat([q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)]), z.flatten(0, 1)]


def unfolded(rows: Tensor) -> list[Tensor]:
    keys, values = rows.view(2, 10, -1).split([4, 6], dim=1)
    return [keys.transpose(1, 2), values]


Case = tuple[GgufChange, tuple[int, ...], Callable[[Tensor], Sequence[Tensor]]]
CASES: dict[str, Case] = {
    "nothing": (SAME, (6, 32), lambda x: [x]),
    "permuted": (Permuted(8), (24, 32), lambda x: [permuted(x)]),
    "permuted bias": (Permuted(8), (24,), lambda x: [permuted(x)]),
    "plus one": (Added(1.0), (32,), lambda x: [x + 1]),
    "grouped norm": (Reshaped((2, -1)), (32,), lambda x: [x.reshape(2, -1)]),
    "column": (Reshaped((-1, 1)), (32,), lambda x: [x[:, None]]),
    "convolution": (Squeezed(), (6, 1, 4), lambda x: [x.squeeze(1)]),
    "decay": (NegativeExponential(), (32,), lambda x: [-x.exp()]),
    "decay column": (NegativeExponential(column=True), (32,), lambda x: [-x.exp()[:, None]]),
    "gate and up": (Halved(), (12, 32), lambda x: x.split(6, dim=-2)),
    "experts": (Halved(), (3, 12, 32), lambda x: x.split(6, dim=-2)),
    "gpt-oss down": (Transposed(), (3, 32, 8), lambda x: [x.transpose(-1, -2)]),
    "gpt-oss gate and up": (
        TransposedAndDealt(),
        (3, 32, 8),
        lambda x: [x.transpose(-1, -2)[:, ::2], x.transpose(-1, -2)[:, 1::2]],
    ),
    "gpt-oss biases": (Dealt(), (3, 8), lambda x: [x[..., ::2], x[..., 1::2]]),
    "qkvz": (GroupedByKind(2, 4, 6), (40, 32), by_kind),
    "value heads": (Tiled(2, 6), (24, 32), lambda x: [tiled(x, 0, 4)]),
    "value heads after keys": (Tiled(2, 6, 8), (32, 32), lambda x: [torch.cat([x[:8], tiled(x[8:], 0, 4)])]),
    "decay of value heads": (Tiled(2, 6, within=NegativeExponential()), (6,), lambda x: [tiled(-x.exp(), 0, 1)]),
    "convolution of value heads": (
        Tiled(2, 6, 8, within=Squeezed()),
        (32, 1, 4),
        lambda x: [torch.cat([x[:8, 0], tiled(x[8:, 0], 0, 4)])],
    ),
    "columns of value heads": (TiledColumns(2, 6, 32), (5, 192), lambda x: [tiled(x, 1, 32)]),
    "latent keys and values": (Unfolded(2, 4, 6), (20, 32), unfolded),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
def test_values_are_as_before(name: str, type_name: str) -> None:
    change, shape, convert = CASES[name]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    written = [part.contiguous() for part in convert(values)]
    assert tuple(tuple(part.shape) for part in written) == change.shapes(shape)
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name != "F32" and any(part.dim() == 1 or part.shape[-1] % 32 for part in written):
        return  # not quantised
    blocks = [torch.from_numpy(gguf.quantize(part.numpy(), kind).view(np.uint8)) for part in written]
    stored = tuple(GgufTensor(type_name, tuple(part.shape), raw) for part, raw in zip(written, blocks, strict=True))
    found = GgufParameter(shape, stored, change)
    assert found.type == type_name and found.dequantised().shape == shape
    if type_name == "F32":
        assert torch.allclose(found.dequantised(), values, rtol=1e-6, atol=1e-6)
    elif found.whole is not None:  # the same blocks as of the parameter itself
        expected = torch.from_numpy(gguf.quantize(values.numpy(), kind))
        assert torch.equal(found.raw, expected)
    else:
        assert (found.dequantised() - values).abs().max() < 0.03


def test_several_parameters_in_one_tensor() -> None:
    values = torch.randn(3, 4, 32)
    tensor = GgufTensor("F32", (3, 4, 32), values.view(torch.uint8))
    for index in range(3):
        found = GgufParameter((4, 32), (tensor,), Stacked(index, 3))
        assert Stacked(index, 3).shapes((4, 32)) == ((3, 4, 32),) and torch.equal(found.dequantised(), values[index])


def test_blocks_that_cross_heads_are_not_moved() -> None:
    assert TiledColumns(2, 6, 128).keeps_blocks("Q8_0") and not TiledColumns(2, 6, 128).keeps_blocks("Q4_K")


def test_parts_of_different_types_keep_their_values() -> None:
    first, second = torch.randn(4, 32), torch.randn(4, 32)
    parts = (
        GgufTensor("F32", (4, 32), first.view(torch.uint8)),
        GgufTensor("F16", (4, 32), second.half().view(torch.uint8)),
    )
    found = GgufParameter((8, 32), parts, Halved())
    assert found.whole is None and found.plain is None and found.type == "F32+F16"
    assert torch.equal(found.dequantised(), torch.cat([first, second.half().float()]))
