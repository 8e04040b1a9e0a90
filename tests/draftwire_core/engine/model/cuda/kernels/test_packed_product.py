"""Products of weights of few bits, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from draftwire_core.engine.kernels.products.gemm_blocks import BlockType
from draftwire_core.engine.model.cuda.kernels.packed_product import multiply_packed
from draftwire_core.engine.model.cuda.kernels.product import ROW_BLOCKS, Gate
from draftwire_core.engine.model.cuda.kernels.product_trial import try_product
from draftwire_core.engine.model.cuda.weights.device_weight import Code, DeviceWeight, DeviceWeightError
from draftwire_core.engine.model.cuda.weights.packing import stored_on
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from tests.harness.engine.random_blocks import random_blocks
from tests.harness.engine.random_blocks import values as block_values

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

BOUND = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}
"""Of the difference from float64, as a share of the largest output: rounding of the sums, or of the output."""
Integers = tuple[Code, int, torch.dtype, int | None]
"""Code, inputs of a group, dtype of scales, and the zero point, if it is one."""
Case = Integers | BlockType
CASES: list[Case] = [
    ("fp8", 384, torch.float32, 0),  # a scale per output
    ("fp8", 256, torch.float32, 0),  # the last group is shorter
    ("int8", 384, torch.bfloat16, 128),
    ("int8", 32, torch.float16, 128),
    ("int8", 64, torch.float32, None),
    ("int4", 128, torch.float32, None),
    ("int4", 32, torch.float16, 8),
    *("q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "mxfp4"),
]
INPUTS = {384: 384, 256: 384, 128: 256, 64: 96, 32: 96}
"""Inputs of a weight by those of a group."""


def made(case: Case, outputs: int = 50, inputs: int | None = None) -> tuple[DeviceWeight, Tensor]:
    """A random weight, and its values, float64. inputs: by default a few groups."""
    if isinstance(case, str):
        raw = random_blocks(case, outputs, inputs or (512 if case.endswith("k") else 96))
        return stored_on(torch.device("cpu"), BlockWeight(case, raw)), block_values(case, raw).double()
    code, group, scale_dtype, zero = case
    inputs = inputs or INPUTS[group]
    generator = torch.Generator().manual_seed(outputs + group)
    codes = torch.randint(16 if code == "int4" else 256, (outputs, inputs), generator=generator).to(torch.uint8)
    if code == "fp8":
        codes[(codes & 0x7F) == 0x7F] = 0  # no number
    scales = (0.01 + torch.rand(outputs, -(-inputs // group), generator=generator)).to(scale_dtype)
    zeros: Tensor | int = (
        zero
        if zero is not None
        else torch.randint(16, (outputs, -(-inputs // group)), generator=generator).to(torch.uint8)
    )
    numbers = codes.view(torch.float8_e4m3fn).double() if code == "fp8" else codes.double()
    if isinstance(zeros, Tensor):
        numbers -= zeros.repeat_interleave(group, 1)[:, :inputs]
    else:
        numbers -= zeros
    values = numbers * scales.double().repeat_interleave(group, 1)[:, :inputs]
    return DeviceWeight.of(code, codes, scales, zeros, group=group), values


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product(
    inputs: Tensor,
    weight: DeviceWeight,
    bias: Tensor | None = None,
    *,
    add_to: Tensor | None = None,
    gate: Gate | None = None,
    dtype: torch.dtype | None = None,
    row_blocks: tuple[int, ...] = ROW_BLOCKS,
) -> Tensor:
    return multiply_packed(inputs, weight, bias, add_to=add_to, gate=gate, dtype=dtype, row_blocks=row_blocks)


def close(found: Tensor, expected: Tensor) -> bool:
    return float((found.double() - expected).abs().max()) <= BOUND[found.dtype] * float(expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_and_biases(case: Case, dtype: torch.dtype) -> None:
    weight, values = made(case)
    inputs, bias = draw(20, weight.shape[1], dtype=dtype), draw(50, dtype=dtype)
    expected = inputs.double() @ values.t()
    assert close(product(inputs, weight, dtype=torch.float32), expected)
    assert close(product(inputs, weight, bias), expected + bias.double())
    residual = draw(20, 50, dtype=torch.float32, seed=1)
    added = residual.double() + expected
    assert product(inputs, weight, add_to=residual) is residual and close(residual, added)


@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gates(case: Case, gate: Gate) -> None:
    weight, values = made(case)
    inputs, bias = draw(17, weight.shape[1]) / 300, draw(50)
    gates, ups = (inputs.double() @ values.t() + bias.double()).split(25, dim=1)
    act = torch.nn.functional.silu(gates) if gate == "silu" else torch.nn.functional.gelu(gates, approximate="tanh")
    assert close(product(inputs, weight, bias, gate=gate), act * ups)


def check_batch_invariance(weight: DeviceWeight, blocks: tuple[int, ...], rows: int, counts: tuple[int, ...]) -> None:
    inputs = draw(rows, weight.shape[1]) * draw(rows, 1, seed=1).exp()
    whole = product(inputs, weight, row_blocks=blocks, dtype=torch.float32)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(2))
    assert torch.equal(product(inputs[order], weight, row_blocks=blocks, dtype=torch.float32), whole[order])
    for count in counts:
        for first in (0, rows - count):
            found = product(inputs[first : first + count], weight, row_blocks=blocks, dtype=torch.float32)
            assert torch.equal(found, whole[first : first + count])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(case: Case) -> None:
    """Of more than one group of inputs, in each size of blocks."""
    weight, _ = made(case, outputs=20)
    check_batch_invariance(weight, ROW_BLOCKS, 66, (1, 17))


@pytest.mark.slow
class TestTriedBlocks:
    """Sizes of blocks as they are tried for each weight."""

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_a_row_has_the_same_bits_in_any_batch(self, case: Case) -> None:
        weight, _ = made(case, inputs=768)
        trial = try_product(weight, None)
        assert not trial.lost
        check_batch_invariance(weight, trial.cuts.row_blocks, 130, (1, 2, 17, 65))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_parts(case: Case) -> None:
    weight, values = made(case)
    rows = torch.tensor([3, 3, 49, 0])
    assert torch.equal(weight.values(rows), values[rows].float())
    part, inputs = weight.part(7, 29), draw(5, weight.shape[1])
    assert torch.equal(product(inputs, part), product(inputs, weight)[:, 7:29])


def test_groups_that_the_kernels_do_not_support() -> None:
    codes = torch.zeros(4, 96, dtype=torch.uint8)
    with pytest.raises(DeviceWeightError, match="96 inputs in groups of 16 are not blocks of 32"):
        DeviceWeight.of("int4", codes, torch.ones(4, 6), 8, group=16)
