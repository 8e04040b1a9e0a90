"""Keys and values in 8 bits and in float16: what is rounded, and that compiled code and torch agree to the bit."""

from collections.abc import Iterator

import pytest
import torch

from draftwire_core.engine.kernels import kv_rows
from draftwire_core.engine.kernels import library as compiled_library
from draftwire_core.engine.kernels.kv_rows import (
    STORED,
    as_float16,
    elements,
    rounded,
    stored_width,
    widened,
    write_rows,
)
from draftwire_core.engine.kernels.layer_ops import rope
from draftwire_core.engine.kernels.library import available_kernels, use_kernels

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
compiled = pytest.mark.skipif(compiled_library.library() is None, reason="not built: there is no C compiler")


@pytest.fixture(params=[name for name in available_kernels() if name in ("baseline", "avx2", "avx512")])
def vectors(request: pytest.FixtureRequest) -> Iterator[None]:
    before = compiled_library.kernels_in_use()
    use_kernels(request.param)
    yield
    use_kernels(before)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Rows whose blocks differ in size by many powers of two."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 2.0 ** torch.randint(-40, 40, shape[:-1], generator=generator)
    return (torch.randn(*shape, generator=generator) * sizes[..., None]).to(dtype)


def unusual(dtype: torch.dtype) -> torch.Tensor:
    """Rows [6, 3, 64] with zeros, tiny, huge, infinite and missing numbers, and ties."""
    rows = random(6, 3, 64, dtype=torch.float32)
    rows[0] = 0
    rows[1, :, :32] = 1e-39
    rows[2, 0, 5], rows[2, 1, 40], rows[2, 2, 63] = torch.inf, -torch.inf, torch.nan
    rows[3] = 3e38 * torch.linspace(-1, 1, 64)
    rows[4] = torch.arange(64) - 31.5
    rows[4, :, 31], rows[4, :, 63] = 127, -127
    return rows.to(dtype)


@DTYPES
def test_elements_are_rounded_by_at_most_half_a_step(dtype: torch.dtype) -> None:
    rows = random(4, 9, 96, dtype=dtype)
    stored = rounded(rows)
    assert stored.dtype == STORED and stored.shape == (4, 9, stored_width(96)) == (4, 9, 102)
    assert elements(stored) == 96 and elements(rows) == 96
    found = widened(stored).unflatten(-1, (3, 32)).double()
    expected = rows.double().unflatten(-1, (3, 32))
    steps = expected.abs().amax(-1, keepdim=True) / 127
    assert ((found - expected).abs() <= 0.503 * steps).all()  # the scale is rounded to bfloat16
    assert torch.equal(found.float().double(), found)
    assert torch.equal(widened(rounded(-rows)), -widened(stored))


def test_unusual_numbers() -> None:
    found = widened(rounded(unusual(torch.float32)))
    assert not found[0].any() and not found[1, :, :32].any()
    for row, block in ((0, 0), (1, 1), (2, 1)):
        assert found[2, row].unflatten(0, (2, 32))[block].isnan().all()
        assert found[2, row].unflatten(0, (2, 32))[1 - block].isfinite().all()
    assert found[3].isfinite().all() and found[3].abs().amax() > 2.9e38
    assert found[4, 0, 0] == -32 and found[4, 0, 1] == -30  # ties to even


@compiled
@pytest.mark.usefixtures("vectors")
@DTYPES
def test_compiled_code_writes_the_same_bits(dtype: torch.dtype) -> None:
    for rows in (random(3, 5, 32, dtype=dtype), random(2, 40, 224, dtype=dtype, seed=1), unusual(dtype)):
        heads, count, dim = rows.shape
        slots = torch.randperm(50)[:count]
        stored = torch.zeros(heads, 50, stored_width(dim), dtype=STORED)
        expected = stored.clone()
        expected[:, slots] = rounded(rows)
        write_rows(rows, slots, stored)
        assert torch.equal(stored, expected)
        # As transformers' layers have them: a view of [rows, heads, dim].
        stored.zero_()
        write_rows(rows.transpose(0, 1).contiguous().transpose(0, 1), slots, stored)
        assert torch.equal(stored, expected)


@compiled
@pytest.mark.usefixtures("vectors")
@DTYPES
@pytest.mark.parametrize("dim", [32, 64, 96, 128])
def test_fused_layers_write_the_same_bits(dim: int, dtype: torch.dtype) -> None:
    rows, heads, kv_heads, capacity = 5, 4, 2, 11
    projected = torch.randn(rows, (heads + 2 * kv_heads) * dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    angles = torch.randn(rows, dim // 2, generator=torch.Generator().manual_seed(2)).repeat(1, 2)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    slots = torch.tensor([3, 10, 1, 0, 7])
    keys, values = (torch.zeros(kv_heads, capacity, dim, dtype=dtype) for _ in range(2))
    query = rope(projected, cosines, sines, None, slots, keys, values, 0.5)
    stored = [torch.zeros(kv_heads, capacity, stored_width(dim), dtype=STORED) for _ in range(2)]
    assert torch.equal(rope(projected, cosines, sines, None, slots, *stored, 0.5), query)
    assert torch.equal(stored[0][:, slots], rounded(keys[:, slots]))
    assert torch.equal(stored[1][:, slots], rounded(values[:, slots]))
    unused = [slot for slot in range(capacity) if slot not in slots]
    assert not stored[0][:, unused].any() and not stored[1][:, unused].any()


@compiled
def test_without_the_library_torch_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, slots = random(2, 3, 64, dtype=torch.bfloat16), torch.tensor([4, 0, 2])
    found, expected = (torch.zeros(2, 6, stored_width(64), dtype=STORED) for _ in range(2))
    write_rows(rows, slots, expected)
    monkeypatch.setattr(kv_rows, "library", lambda: None)
    write_rows(rows, slots, found)
    assert torch.equal(found, expected)


@compiled
@pytest.mark.usefixtures("vectors")
def test_fused_layers_round_to_float16_as_torch_does() -> None:
    """All exponents, ties, numbers beyond the range, and what is no number."""
    bits = torch.arange(0, 1 << 32, 4093).to(torch.int32)
    ties = (torch.arange(1 << 15, dtype=torch.int16).view(torch.float16).float().view(torch.int32) + 0x1000).repeat(2)
    ties[1 << 15 :] |= -(1 << 31)
    numbers = torch.cat([bits, ties]).view(torch.float32)
    heads, dim = 2, 64
    numbers = numbers[: len(numbers) // (heads * dim) * heads * dim].view(-1, heads * dim)
    projected = torch.cat([torch.zeros(len(numbers), heads * dim), numbers.flip(0), numbers], dim=1)
    angles, slots = torch.zeros(len(numbers), dim), torch.randperm(len(numbers))
    keys, values = (torch.zeros(heads, len(numbers), dim, dtype=torch.float16) for _ in range(2))
    rope(projected, angles, angles, None, slots, keys, values, 1.0, rotary=0)
    for found, given in ((keys, numbers.flip(0)), (values, numbers)):
        expected = as_float16(given).unflatten(1, (heads, dim)).transpose(0, 1)
        found = found[:, slots]
        assert torch.equal(found.isnan(), expected.isnan()) and found.isnan().any()
        assert torch.equal(found.nan_to_num().view(torch.int16), expected.nan_to_num().view(torch.int16))
        assert not found.isinf().any() and found.nan_to_num().abs().max() == 65504
