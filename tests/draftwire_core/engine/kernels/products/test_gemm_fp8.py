"""The compiled product of weights of 8-bit floats: its results, and that its bits depend on nothing but row and
weight."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.kernels.products.gemm_fp8 import CompiledFp8Gemm
from tests.harness.kernels.gemm_kinds import each_kind
from tests.harness.kernels.product_checks import (
    assert_documented,
    assert_same_bits_in_any_batch,
    assert_threads_change_no_bit,
    nearest,
    random_rows,
)

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")

FLOAT8 = torch.float8_e4m3fn
Floats = tuple[torch.Tensor, torch.Tensor]


def all_numbers(count: int) -> torch.Tensor:
    """Returns codes of all numbers in turn, without those that are no numbers."""
    codes = torch.arange(count) * 37 % 256
    return torch.where(codes & 0x7F == 0x7F, 0, codes).to(torch.uint8)


def random_floats(outputs: int, inputs: int, group: int) -> Floats:
    scales = torch.rand(outputs, -(-inputs // group), generator=torch.Generator().manual_seed(0)) * 0.01
    return all_numbers(outputs * inputs).view(outputs, inputs).view(FLOAT8), scales


def product_of(weight: Floats, group: int) -> CompiledFp8Gemm:
    values, scales = weight
    return CompiledFp8Gemm(lambda first, last: (values[first:last], scales[first:last]), *values.shape, group)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(1, 64, 64), (50, 320, 128), (300, 1536, 1536)])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 11, 30])
def test_it_is_a_product(rows: int, outputs: int, inputs: int, group: int) -> None:
    weight, given, bias = random_floats(outputs, inputs, group), random_rows(rows, inputs), random_rows(outputs)
    found = product_of(weight, group)(given, bias)
    values = weight[0].double() * weight[1].double().repeat_interleave(group, 1)[:, :inputs]
    x = given.double()
    expected = x @ values.t() + bias.double()
    allowed = expected.abs() * 2**-8 + 1e-6 * inputs * (x.abs() @ values.abs().t()).max()
    assert found.shape == (rows, outputs) and found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("group", [128, 320])
def test_all_kernels_give_the_same_bits(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    product, given = product_of(random_floats(37, 320, group), group), random_rows(23, 320)
    given[5, 17] = float("inf")
    found = [product(given).view(torch.int16) for _ in each_kind(monkeypatch)]
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.usefixtures("kind")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    product, given = product_of(random_floats(45, 512, 128), 128), random_rows(40, 512)
    assert_same_bits_in_any_batch(product, given)


@pytest.mark.usefixtures("kind")
def test_threads_change_no_bit() -> None:
    product, given = product_of(random_floats(600, 1024, 128), 128), random_rows(20, 1024)
    assert_threads_change_no_bit(product, given)


@pytest.mark.usefixtures("kind")
def test_its_bits_are_those_of_the_definition() -> None:
    """Exact arithmetic, rounded where docs/engine.md says so."""
    weight, given = random_floats(3, 160, 64), random_rows(2, 160)
    found = product_of(weight, 64)(given)
    for row in range(2):
        for output in range(3):
            total = np.float32(0)
            for group, first in enumerate(range(0, 160, 64)):
                total_of_group = np.float32(0)
                for i in range(first, min(first + 64, 160)):
                    exact = Fraction(float(weight[0][output, i])) / 256 * Fraction(float(given[row, i]))
                    total_of_group = nearest(exact + Fraction(float(total_of_group)))
                scale = 256 * Fraction(float(weight[1][output, group]))
                total = nearest(scale * Fraction(float(total_of_group)) + Fraction(float(total)))
            assert found[row, output] == torch.tensor(float(total)).to(torch.bfloat16)


def of_the_page() -> torch.Tensor:
    """Returns the product of the weight and the row that docs/engine.md defines."""
    row = torch.tensor([(37 * i % 255 - 127) / 64 for i in range(256)]).to(torch.bfloat16)
    codes = (73 * torch.arange(256) + 29 * torch.arange(16)[:, None] + 7) % 256
    codes = torch.where(codes & 0x7F == 0x7F, codes - 1, codes).to(torch.uint8)
    return product_of((codes.view(FLOAT8), torch.full((16, 4), 2**-7)), 64)(row[None])[0]


@pytest.mark.usefixtures("kind")
def test_vectors_of_the_documentation() -> None:
    assert_documented("fp8", of_the_page())
