"""Norms, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from draftwire_core.engine.model.cuda.kernels.norm import Kept, add_norm, keep_rows, rms_norm

BOUND = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
"""Of the difference from float64, as a share of the number or of 1."""
EPS = 1e-5


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def reference(inputs: Tensor, weight: Tensor, offset: float) -> Tensor:
    numbers = inputs.double()
    return numbers / (numbers.square().mean(-1, keepdim=True) + EPS).sqrt() * (weight.double() + offset)


def close(found: Tensor, expected: Tensor) -> bool:
    return bool(((found.double() - expected).abs() <= BOUND[found.dtype] * expected.abs().clamp(min=1)).all())


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("width", [16, 100, 1500])
def test_norms(width: int, dtype: torch.dtype) -> None:
    inputs, weight = draw(5, width, dtype=dtype) * 3, draw(width, dtype=dtype, seed=1)
    for offset in (0.0, 1.0):
        assert close(rms_norm(inputs, weight, EPS, offset), reference(inputs, weight, offset))


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("width", [48, 1100])
def test_norms_that_are_added(width: int, dtype: torch.dtype) -> None:
    inputs, residual = draw(4, width, dtype=dtype), draw(4, width, dtype=dtype, seed=1)
    weight, after = draw(width, dtype=dtype, seed=2), draw(width, dtype=dtype, seed=3)
    expected = residual.double() + reference(inputs, weight, 1.0)
    again = residual.clone()
    normed = add_norm(inputs, weight, residual, EPS, 1.0, after)
    assert normed is not None and close(residual, expected) and close(normed, reference(residual, after, 1.0))
    assert add_norm(inputs, weight, again, EPS, 1.0) is None
    assert torch.equal(again, residual)


@pytest.mark.parametrize("dtype", BOUND)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    inputs, weight = draw(65, 1100, dtype=dtype), draw(1100, dtype=dtype, seed=1)
    whole = rms_norm(inputs, weight, EPS, 0.0)
    for count in (1, 2, 9, 17, 64):
        assert torch.equal(rms_norm(inputs[-count:], weight, EPS, 0.0), whole[-count:])


def test_rows_of_float32_have_norms_of_the_weights_dtype() -> None:
    inputs, residual = draw(4, 48, dtype=torch.bfloat16), draw(4, 48, dtype=torch.float32, seed=1)
    weight, after = draw(48, dtype=torch.bfloat16, seed=2), draw(48, dtype=torch.bfloat16, seed=3)
    expected = residual.double() + reference(inputs, weight, 1.0)
    normed = add_norm(inputs, weight, residual, EPS, 1.0, after)
    assert residual.dtype == torch.float32 and close(residual, expected)
    for found in (normed, rms_norm(residual, after, EPS, 1.0)):
        assert found is not None and found.dtype == torch.bfloat16 and close(found, reference(residual, after, 1.0))


@pytest.mark.parametrize("dtype", BOUND)
def test_rows_that_are_kept_change_no_bit_of_the_norm(dtype: torch.dtype) -> None:
    inputs, weight = draw(3, 100, dtype=torch.float32), draw(100, dtype=dtype, seed=1)
    places = torch.tensor([-1, 1, 0], dtype=torch.int32)
    for layer, plane in enumerate(places.tolist()):
        planes = torch.zeros(2, 5, 100, dtype=dtype)
        expected = planes.clone()
        if plane >= 0:
            expected[plane, :3] = inputs.to(dtype)
        kept = Kept(places, planes, layer)
        assert torch.equal(rms_norm(inputs, weight, EPS, 0.0, kept), rms_norm(inputs, weight, EPS, 0.0))
        assert torch.equal(planes, expected)
        planes.zero_()
        keep_rows(inputs, kept)
        assert torch.equal(planes, expected)
