"""The compiled operations between a layer's products, against transformers' code of the Llama architecture."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from draftwire_core.engine.kernels import library as compiled_library
from draftwire_core.engine.kernels.layer_ops import gate, gate_heads, rms_norm, rope

pytestmark = pytest.mark.skipif(compiled_library.library() is None, reason="not built: there is no C compiler")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
UNIT = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
"""Relative tolerance of two units in the last place: sums and exponentials may each round differently once."""


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normed(inputs: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    norm = LlamaRMSNorm(len(weight), eps)
    norm.weight.data = weight
    with torch.inference_mode():
        return norm(inputs)


@DTYPES
@pytest.mark.parametrize("width", [16, 64, 1536])
def test_norm(width: int, dtype: torch.dtype) -> None:
    inputs, weight = random(9, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    found = rms_norm(inputs, weight, 1e-5)
    torch.testing.assert_close(found, normed(inputs, weight, 1e-5), rtol=UNIT[dtype], atol=1e-6)
    for row in range(9):
        assert torch.equal(rms_norm(inputs[row : row + 1], weight, 1e-5)[0], found[row])


@DTYPES
@pytest.mark.parametrize("norms", [False, True], ids=["as they are", "normed heads"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 32), (6, 2, 64), (8, 1, 128)])
def test_rope(heads: int, kv_heads: int, dim: int, norms: bool, dtype: torch.dtype) -> None:
    rows, capacity, scale = 5, 11, dim**-0.5
    projected = random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles = random(rows, dim // 2, dtype=torch.float32, seed=1).repeat(1, 2)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    weights = random(dim, dtype=dtype, seed=2), random(dim, dtype=dtype, seed=3)
    query, key, value = (
        part.view(rows, -1, dim).transpose(0, 1)
        for part in projected.clone().split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
    )
    if norms:
        query, key = (
            normed(part.contiguous(), weight, 1e-6) for part, weight in zip((query, key), weights, strict=True)
        )
    query, key = (part[0] for part in apply_rotary_pos_emb(query[None], key[None], cosines[None], sines[None]))

    slots = torch.tensor([3, 10, 1, 0, 7])
    keys, values = (random(kv_heads, capacity, dim, dtype=dtype, seed=seed) for seed in (4, 5))
    expected_keys, expected_values = keys.clone(), values.clone()
    expected_keys[:, slots], expected_values[:, slots] = key, value
    found = rope(projected, cosines, sines, (*weights, 1e-6) if norms else None, slots, keys, values, scale)

    tolerance = {"rtol": UNIT[dtype], "atol": 4 * UNIT[dtype]} if norms else {"rtol": 0, "atol": 0}
    assert found.dtype == torch.float32 and found.shape == (heads, rows, dim)
    torch.testing.assert_close(found, query.float() * scale, **tolerance)
    torch.testing.assert_close(keys, expected_keys, **tolerance)
    assert torch.equal(values, expected_values)


@DTYPES
def test_silu(dtype: torch.dtype) -> None:
    gates = torch.linspace(-120, 120, 6 * 480).view(6, 480).to(dtype)
    ups = random(6, 480, dtype=dtype)
    found = gate(torch.cat([gates, ups], 1))
    torch.testing.assert_close(found, torch.nn.functional.silu(gates) * ups, rtol=UNIT[dtype], atol=1e-30)


@DTYPES
def test_gelu_by_tanh(dtype: torch.dtype) -> None:
    gates = torch.linspace(-120, 120, 6 * 480).view(6, 480).to(dtype)
    ups = random(6, 480, dtype=dtype)
    found = gate(torch.cat([gates, ups], 1), "gelu_tanh")
    expected = torch.nn.functional.gelu(gates.double(), approximate="tanh").to(dtype) * ups
    torch.testing.assert_close(found, expected, rtol=4 * UNIT[dtype], atol=1e-6)


@DTYPES
@pytest.mark.parametrize("rotary", [0, 32])
def test_a_part_of_a_head_is_rotated(rotary: int, dtype: torch.dtype) -> None:
    rows, heads, dim = 5, 4, 64
    projected = random(rows, 3 * heads * dim, dtype=dtype)
    angles = random(rows, max(rotary, 2) // 2, dtype=torch.float32, seed=1).repeat(1, 2)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    query, key = (part.view(rows, -1, dim).transpose(0, 1) for part in projected.split(heads * dim, dim=1)[:2])
    expected = torch.cat([query, key]).clone()
    if rotary:
        turned = apply_rotary_pos_emb(
            expected[None, ..., :rotary], expected[None, ..., :rotary], cosines[None], sines[None]
        )
        expected[..., :rotary] = turned[0][0]
    keys, values = (torch.zeros(heads, rows, dim, dtype=dtype) for _ in range(2))
    found = rope(projected.clone(), cosines, sines, None, torch.arange(rows), keys, values, 1.0, rotary)
    assert torch.equal(found.to(dtype), expected[:heads])
    assert torch.equal(keys, expected[heads:])


@DTYPES
def test_a_norm_of_all_heads(dtype: torch.dtype) -> None:
    rows, heads, kv_heads, dim = 5, 4, 2, 32
    projected = random(rows, (heads + 2 * kv_heads) * dim, dtype=dtype)
    weights = random(heads * dim, dtype=dtype, seed=2), random(kv_heads * dim, dtype=dtype, seed=3)
    parts = projected.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
    expected = [
        normed(part.contiguous(), weight, 1e-6).view(rows, -1, dim).transpose(0, 1)
        for part, weight in zip(parts, weights, strict=False)
    ]
    keys, values = (torch.zeros(kv_heads, rows, dim, dtype=dtype) for _ in range(2))
    none = torch.empty(rows, 0, dtype=dtype)
    found = rope(projected.clone(), none, none, (*weights, 1e-6), torch.arange(rows), keys, values, 1.0, 0)
    tolerance = {"rtol": UNIT[dtype], "atol": 4 * UNIT[dtype]}
    torch.testing.assert_close(found, expected[0].float(), **tolerance)
    torch.testing.assert_close(keys, expected[1], **tolerance)


@DTYPES
@pytest.mark.parametrize("kv_parts", [0, 1, 2], ids=["queries alone", "keys that are values", "keys and values"])
def test_heads_with_gates_and_normed_values(kv_parts: int, dtype: torch.dtype) -> None:
    rows, heads, kv_heads, dim = 5, 4, 2, 32
    query, gates = (random(rows, heads, dim, dtype=dtype, seed=seed) for seed in (1, 2))
    kv = random(rows, kv_parts * kv_heads, dim, dtype=dtype, seed=3)
    angles = random(rows, dim // 2, dtype=torch.float32, seed=4).repeat(1, 2)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    weights = random(dim, dtype=dtype, seed=5), random(dim, dtype=dtype, seed=6)
    ones, slots = torch.ones(dim, dtype=dtype), torch.arange(rows)

    def turned(part: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normal = normed(part.transpose(0, 1).contiguous(), weight, 1e-6)[None]
        return apply_rotary_pos_emb(normal, normal, cosines[None], sines[None])[0][0]

    projected = torch.cat([torch.stack([query, gates], 2).flatten(1), kv.flatten(1)], 1)
    keys, values = (torch.zeros(kv_heads, rows, dim, dtype=dtype) for _ in range(2))
    found = rope(
        projected.clone(), cosines, sines, (*weights, 1e-6), slots, keys, values, 1.0,
        value_norm=ones, gated=True, kv_parts=kv_parts,
    )  # fmt: skip
    tolerance = {"rtol": UNIT[dtype], "atol": 4 * UNIT[dtype]}
    torch.testing.assert_close(found, turned(query, weights[0]).float(), **tolerance)
    if kv_parts:
        torch.testing.assert_close(keys, turned(kv[:, :kv_heads], weights[1]), **tolerance)
        expected = normed(kv[:, -kv_heads:].transpose(0, 1).contiguous(), ones, 1e-6)
        torch.testing.assert_close(values, expected, **tolerance)
    else:
        assert not keys.any()
        assert not values.any()


def test_gates_of_heads() -> None:
    rows, heads, dim = 5, 4, 48
    query, gates = (random(rows, heads, dim, dtype=torch.float32, seed=seed) for seed in (1, 2))
    projected = torch.cat([torch.stack([query, 9 * gates], 2).flatten(1), torch.zeros(rows, dim)], 1)
    attended = random(rows, heads, dim, dtype=torch.float32, seed=3)
    expected = attended * torch.sigmoid(9 * gates)
    alone = [gate_heads(projected[row : row + 1], attended[row : row + 1].clone())[0] for row in range(rows)]
    found = gate_heads(projected, attended)
    assert torch.equal(found, torch.stack(alone))
    torch.testing.assert_close(found, expected, rtol=UNIT[torch.float32], atol=1e-30)


@DTYPES
def test_what_is_no_usual_number_stays_what_it_is(dtype: torch.dtype) -> None:
    both = torch.ones(4, 32, dtype=dtype)
    both[0, 3], both[1, 20], both[2, 5], both[3, 5] = float("nan"), float("nan"), float("inf"), -float("inf")
    expected = torch.nn.functional.silu(both[:, :16]) * both[:, 16:]
    torch.testing.assert_close(gate(both), expected, rtol=UNIT[dtype], atol=0, equal_nan=True)
    inputs = torch.ones(2, 16, dtype=dtype)
    inputs[1, 2] = float("nan")
    normalised = rms_norm(inputs, torch.ones(16, dtype=dtype), 1e-6)
    assert not normalised[0].isnan().any() and normalised[1].isnan().all()
