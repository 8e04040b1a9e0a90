"""Products, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from draftwire_core.engine.model.cuda.kernels import product
from draftwire_core.engine.model.cuda.kernels.product import ROW_BLOCKS, Gate, multiply, shape_of, stages_of
from draftwire_core.engine.model.cuda.kernels.product_trial import try_product

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

BOUND = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
"""Of the difference from float64, as a share of the largest output: rounding of the sums, or of the output."""
COUNTS = (1, 2, 9, 17, 64, 65)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: Tensor, expected: Tensor) -> bool:
    return float((found.double() - expected).abs().max()) <= BOUND[found.dtype] * float(expected.abs().max())


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("outputs", "inner"), [(172, 200), (16, 16), (3, 8), (130, 384)])
def test_products_and_biases(outputs: int, inner: int, dtype: torch.dtype) -> None:
    inputs, weight, bias = (draw(*shape, dtype=dtype) for shape in ((70, inner), (outputs, inner), (outputs,)))
    product = inputs.double() @ weight.double().t()
    assert close(multiply(inputs, weight), product)
    assert close(multiply(inputs, weight, bias), product + bias.double())


@pytest.mark.parametrize("dtype", BOUND)
def test_products_are_added_in_place(dtype: torch.dtype) -> None:
    inputs, weight, residual = (draw(*shape, dtype=dtype) for shape in ((20, 96), (48, 96), (20, 48)))
    expected = residual.double() + inputs.double() @ weight.double().t()
    assert multiply(inputs, weight, add_to=residual) is residual
    assert close(residual, expected)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("gate", ["silu", "gelu"])
def test_gates(gate: Gate, dtype: torch.dtype) -> None:
    inputs, weight, bias = (draw(*shape, dtype=dtype) for shape in ((33, 72), (2 * 50, 72), (100,)))
    gates, ups = (inputs.double() @ weight.double().t() + bias.double()).split(50, dim=1)
    act = torch.nn.functional.silu(gates) if gate == "silu" else torch.nn.functional.gelu(gates, approximate="tanh")
    assert close(multiply(inputs, weight, bias, gate=gate), act * ups)


def test_results_and_residuals_of_float32() -> None:
    inputs, weight = (draw(*shape, dtype=torch.bfloat16) for shape in ((20, 96), (48, 96)))
    residual = draw(20, 48, dtype=torch.float32)
    product = inputs.double() @ weight.double().t()
    assert close(multiply(inputs, weight, dtype=torch.float32), product)
    expected = residual.double() + product
    assert close(multiply(inputs, weight, add_to=residual), expected)


def test_rows_need_not_be_adjacent() -> None:
    inputs, weight = draw(9, 200, dtype=torch.float32)[:, :120], draw(40, 120, dtype=torch.float32)
    assert torch.equal(multiply(inputs, weight), multiply(inputs.contiguous(), weight))


@pytest.mark.parametrize("dtype", BOUND)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    inputs, weight = draw(130, 200, dtype=dtype), draw(60, 200, dtype=dtype)
    inputs *= draw(130, 1, dtype=dtype, seed=1).exp()
    cuts = try_product(weight, None).cuts
    whole = multiply(inputs, weight, cuts=cuts)
    order = torch.randperm(130, generator=torch.Generator().manual_seed(2))
    assert torch.equal(multiply(inputs[order], weight, cuts=cuts), whole[order])
    for count in COUNTS:
        for first in (0, 130 - count):
            found = multiply(inputs[first : first + count], weight, cuts=cuts)
            assert torch.equal(found, whole[first : first + count])


def test_products_are_cut_such_that_no_processor_has_much_more_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the 132 processors of an H100, at the shapes of Llama 3.1 8B."""
    monkeypatch.setattr(product, "processors", lambda device: 132)
    cpu = torch.device("cpu")

    def outputs(count: int, rows: int, block: int, gated: bool = False) -> int:
        return shape_of(count, rows, block, gated, cpu).outputs

    # One row: as many loads under way as memory needs, from few programs or from many.
    assert [outputs(count, 1, 16) for count in (4096, 6144, 128256)] == [16, 16, 64]
    assert outputs(14336, 1, 16, gated=True) == 64
    # More rows: 64 programs of 64 outputs would take as long as 128 of 32 take together.
    assert [outputs(count, 64, 64) for count in (4096, 6144, 128256)] == [32, 64, 64]
    # A prompt: as much to do in two turns of 128 outputs as in one of 256, but not in three and in two.
    assert [outputs(count, 1024, 128) for count in (4096, 6144)] == [256, 128]
    assert outputs(14336, 1024, 128, gated=True) == 128  # two sums for each output


SHARED = 99 * 1024
"""Bytes of a program on most GPUs."""


def test_loads_fit_into_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "processors", lambda device: 132)
    monkeypatch.setattr(product, "shared_bytes", lambda device: SHARED)
    for block in ROW_BLOCKS:
        for rows in (1, 64, 128, 256, 1024):
            for count in (256, 4096, 14336, 128256):
                for gated in (False, True):
                    for size in (2, 4):
                        shape = shape_of(count, rows, block, gated, torch.device("cpu"))
                        stages = stages_of(shape, block, gated, size, torch.device("cpu"))
                        loaded = stages * (block + shape.outputs * (1 + gated)) * shape.inner * size
                        assert stages == 1 or loaded <= SHARED
