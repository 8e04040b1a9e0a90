"""The compiled product of weights of integers in groups: its results, and that its bits depend on nothing but row and
weight."""

import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.kernels.products.gemm_blocks import CompiledBlockGemm
from draftwire_core.engine.kernels.products.gemm_groups import CompiledGroupGemm
from tests.harness.engine.random_blocks import random_blocks
from tests.harness.kernels.gemm_kinds import each_kind
from tests.harness.kernels.product_checks import (
    assert_documented,
    assert_same_bits_in_any_batch,
    assert_threads_change_no_bit,
    random_rows,
    rounded,
)

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")

Integers = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_integers(bits: int, outputs: int, inputs: int, group: int) -> Integers:
    generator = torch.Generator().manual_seed(bits)
    integers = torch.randint(0, 1 << bits, (outputs, inputs), generator=generator, dtype=torch.uint8)
    scales = torch.rand(outputs, inputs // group, generator=generator) * 0.02 - 0.01
    zeros = torch.randint(0, 1 << bits, (outputs, inputs // group), generator=generator, dtype=torch.uint8)
    return integers, scales, zeros


def product_of(bits: int, weight: Integers) -> CompiledGroupGemm:
    integers, scales, _ = weight
    outputs, inputs = integers.shape
    return CompiledGroupGemm(
        lambda first, last: (weight[0][first:last], weight[1][first:last], weight[2][first:last]),
        bits, outputs, inputs, inputs // scales.shape[1],
    )  # fmt: skip


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(1, 64, 32), (50, 512, 128), (300, 1440, 1440)])
@pytest.mark.parametrize("rows", [1, 5, 9, 30])
def test_it_is_a_product(bits: int, rows: int, outputs: int, inputs: int, group: int) -> None:
    weight, given, bias = random_integers(bits, outputs, inputs, group), random_rows(rows, inputs), random_rows(outputs)
    found = product_of(bits, weight)(given, bias)
    integers, scales, zeros = (each.double() for each in weight)
    values = ((integers.unflatten(1, (-1, group)) - zeros[..., None]) * scales[..., None]).flatten(1)
    x = rounded(given)
    expected = x @ values.t() + bias.double()
    allowed = expected.abs() * 2**-8 + 1e-6 * inputs * (x.abs() @ values.abs().t()).max()
    assert found.shape == (rows, outputs) and found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("extreme", [None, (0, 0), (0, -1), (-1, 0), (-1, -1)])
def test_all_kernels_give_the_same_bits(
    bits: int, extreme: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extreme integers would saturate sums of 16 bits."""
    weight = random_integers(bits, 37, 1024, 64)
    if extreme is not None:
        largest = (1 << bits) - 1
        weight[0].fill_(extreme[0] & largest)
        weight[2].fill_(extreme[1] & largest)
    product = product_of(bits, weight)
    extremes = torch.tensor([3.0, -3.0]).repeat(4, 512).to(torch.bfloat16)
    given = torch.cat([random_rows(9, 1024), extremes.abs(), -extremes.abs(), extremes])
    found = [product(given) for _ in each_kind(monkeypatch)]
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(("bits", "blocks"), [(4, "q4_0"), (8, "q8_0")])
def test_groups_of_one_block_are_blocks_of_gguf(bits: int, blocks: str) -> None:
    raw = random_blocks("q4_0" if blocks == "q4_0" else "q8_0", 45, 512)
    units = raw.unflatten(1, (-1, 18 if bits == 4 else 34))
    quants = units[..., 2:]
    integers = torch.cat([quants & 15, quants >> 4], -1) if bits == 4 else quants ^ 128
    scales = units[..., :2].contiguous().view(torch.float16)[..., 0].float()
    zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.uint8)
    given = random_rows(9, 512)
    expected = CompiledBlockGemm("q4_0" if blocks == "q4_0" else "q8_0", raw)(given)
    assert torch.equal(product_of(bits, (integers.flatten(1), scales, zeros))(given), expected)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_has_the_same_bits_in_any_batch(bits: int) -> None:
    product, given = product_of(bits, random_integers(bits, 45, 512, 128)), random_rows(40, 512)
    assert_same_bits_in_any_batch(product, given)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("bits", [4, 8])
def test_threads_change_no_bit(bits: int) -> None:
    product, given = product_of(bits, random_integers(bits, 600, 1024, 1024)), random_rows(20, 1024)
    assert_threads_change_no_bit(product, given)


def of_the_page(bits: int) -> torch.Tensor:
    """Returns the product of the weight and the row that docs/engine.md defines."""
    most, outputs = (1 << bits) - 1, torch.arange(16)[:, None]
    integers = (73 * torch.arange(256) + 29 * outputs + 7 & most).to(torch.uint8)
    zeros = (37 * torch.arange(4) + 5 * outputs + 3 & most).to(torch.uint8)
    row = torch.tensor([(37 * i % 255 - 127) / 64 for i in range(256)]).to(torch.bfloat16)
    return product_of(bits, (integers, torch.full((16, 4), 2**-7), zeros))(row[None])[0]


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("bits", [4, 8])
def test_vectors_of_the_documentation(bits: int) -> None:
    assert_documented(f"int{bits}", of_the_page(bits))
