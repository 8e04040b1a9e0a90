"""Writing of keys and values, with and without rotation, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from draftwire_core.engine.kernels.kv_rows import STORED, rounded, stored_width
from draftwire_core.engine.model.cuda.kernels.key_rows import rotate_and_write, write_keys

BOUND = {torch.float32: 2e-6, torch.bfloat16: 2**-6}
"""Of the difference from float64; numbers are around 1."""
HEADS, KV_HEADS = 6, 2
SLOTS = torch.tensor([7, 3, 19, 4, 11])


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    low, high = heads.chunk(2, dim=-1)
    return heads * cosines.double().unsqueeze(1) + torch.cat([-high, low], dim=-1) * sines.double().unsqueeze(1)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("dim", [16, 24])
@pytest.mark.parametrize("normed", [False, True])
def test_rotation(normed: bool, dim: int, dtype: torch.dtype) -> None:
    rows = len(SLOTS)
    projected = draw(rows, (HEADS + 2 * KV_HEADS) * dim, dtype=dtype)
    angles = draw(rows, dim, dtype=torch.float32)
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    norms = (draw(dim, dtype=dtype, seed=1), draw(dim, dtype=dtype, seed=2), 1e-5, 1.0) if normed else None
    keys, values = (torch.zeros(20, KV_HEADS, dim, dtype=dtype) for _ in "kv")
    query = rotate_and_write(projected, cosines, sines, norms, keys, values, SLOTS)
    heads = projected.double().view(rows, -1, dim)
    parts = list(heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1))
    if norms is not None:
        for index in (0, 1):
            scale = (parts[index].square().mean(-1, keepdim=True) + norms[2]).sqrt()
            parts[index] = parts[index] / scale * (norms[index].double() + norms[3])
    for found, part in ((query, parts[0]), (keys[SLOTS], parts[1])):
        assert (found.double() - rotated(part, cosines, sines)).abs().max() < BOUND[dtype] * 4
    assert torch.equal(values[SLOTS], projected.view(rows, -1, dim)[:, -KV_HEADS:])
    others = torch.ones(20, dtype=torch.bool)
    others[SLOTS] = False
    assert not keys[others].any() and not values[others].any()
    for row in range(rows):
        one = slice(row, row + 1)
        alone = rotate_and_write(projected[one], cosines[one], sines[one], norms, keys, values, SLOTS[one])
        assert torch.equal(alone[0], query[row])


@pytest.mark.parametrize("dtype", BOUND)
def test_keys_and_values_of_any_layout(dtype: torch.dtype) -> None:
    new_keys, new_values = draw(5, 3, 16, dtype=dtype).transpose(0, 1), draw(3, 5, 12, dtype=dtype)
    keys, values = torch.zeros(20, 3, 16, dtype=dtype), torch.zeros(20, 3, 12, dtype=dtype)
    write_keys(new_keys, new_values, keys, values, SLOTS)
    assert torch.equal(keys[SLOTS], new_keys.transpose(0, 1)) and torch.equal(values[SLOTS], new_values.transpose(0, 1))
    assert keys.count_nonzero(dim=(1, 2)).bool().sum() == len(SLOTS)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_no_number_spoils_its_key(bad: float) -> None:
    new_keys, new_values = draw(2, 5, 16, dtype=torch.float32), draw(2, 5, 16, dtype=torch.float32)
    new_values[1, 3, 5] = bad
    keys, values = torch.zeros(20, 2, 16), torch.zeros(20, 2, 16)
    write_keys(new_keys, new_values, keys, values, SLOTS)
    assert values.isfinite().all() and values[SLOTS[3], 1, 5] == 0
    assert keys[SLOTS[3], 1].isnan().all() and keys.isnan().sum() == 16


class TestEightBits:
    """Keys and values are rounded to the bits that CPUs write."""

    @pytest.mark.parametrize("dtype", BOUND)
    @pytest.mark.parametrize(("dim", "value_dim"), [(32, 96), (64, 32)])
    def test_of_any_layout(self, dim: int, value_dim: int, dtype: torch.dtype) -> None:
        spread = torch.logspace(-44, 37, 5)[:, None, None]  # scales down to denormal ones
        new_keys = (draw(5, 3, dim, dtype=torch.float32) * spread).to(dtype).transpose(0, 1)
        new_values = draw(3, 5, value_dim, dtype=dtype)
        new_values[1, 2, :32] = 0
        keys, values = (torch.zeros(20, 3, stored_width(each), dtype=STORED) for each in (dim, value_dim))
        write_keys(new_keys, new_values, keys, values, SLOTS)
        assert torch.equal(keys[SLOTS], rounded(new_keys).transpose(0, 1))
        assert torch.equal(values[SLOTS], rounded(new_values).transpose(0, 1))
        assert keys.count_nonzero(dim=(1, 2)).bool().sum() <= len(SLOTS)

    def test_behind_rotation(self) -> None:
        projected = draw(5, (HEADS + 2 * KV_HEADS) * 32, dtype=torch.bfloat16)
        angles = draw(5, 32, dtype=torch.float32)
        written = [torch.zeros(20, KV_HEADS, 32, dtype=torch.float32) for _ in "kv"]
        stored = [torch.zeros(20, KV_HEADS, stored_width(32), dtype=STORED) for _ in "kv"]
        queries = [
            rotate_and_write(projected, angles.cos(), angles.sin(), None, *each, SLOTS) for each in (written, stored)
        ]
        assert torch.equal(*queries)
        assert all(torch.equal(found[SLOTS], rounded(rows[SLOTS])) for found, rows in zip(stored, written, strict=True))

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_no_number_spoils_its_key(self, bad: float) -> None:
        """A key spoils its own block, a value all blocks of its key, as where they are not rounded."""
        new_keys, new_values = draw(2, 5, 64, dtype=torch.float32), draw(2, 5, 64, dtype=torch.float32)
        new_values[1, 3, 5], new_keys[0, 1, 40] = bad, bad
        keys, values = (torch.zeros(20, 2, stored_width(64), dtype=STORED) for _ in "kv")
        write_keys(new_keys, new_values, keys, values, SLOTS)
        new_values[1, 3, 5], new_keys[1, 3] = 0, torch.nan
        assert torch.equal(keys[SLOTS], rounded(new_keys).transpose(0, 1))
        assert torch.equal(values[SLOTS], rounded(new_values).transpose(0, 1))
