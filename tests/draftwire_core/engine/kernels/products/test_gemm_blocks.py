"""The compiled product of weights in blocks: its results, and that its bits depend on nothing but row and weight."""

from fractions import Fraction

import gguf
import numpy as np
import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.kernels.products.gemm_blocks import (
    FORMATS,
    BlockType,
    CompiledBlockGemm,
    block_values,
    can_multiply_blocks,
)
from tests.harness.engine.random_blocks import HALVES, random_blocks, values
from tests.harness.kernels.gemm_kinds import each_kind
from tests.harness.kernels.product_checks import (
    assert_documented,
    assert_same_bits_in_any_batch,
    assert_threads_change_no_bit,
    nearest,
    random_rows,
    rounded,
)

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")

TYPES = list(FORMATS)


ROWS = [1, 5, 8, 9, 30]
SHAPES = [(1, 256), (50, 512), (300, 1536)]


def check_product(weights: BlockType, rows: int, outputs: int, inputs: int) -> None:
    given, weight, bias = random_rows(rows, inputs), random_blocks(weights, outputs, inputs), random_rows(outputs)
    found = CompiledBlockGemm(weights, weight)(given, bias)
    x, w = rounded(given, FORMATS[weights].inputs), values(weights, weight).double()
    expected = x @ w.t() + bias.double()
    allowed = expected.abs() * 2**-8 + 1e-6 * inputs * (x.abs() @ w.abs().t()).max()
    assert found.shape == (rows, outputs) and found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(rows, *SHAPES[place % len(SHAPES)]) for place, rows in enumerate(ROWS)]
)
def test_it_is_a_product(weights: BlockType, rows: int, outputs: int, inputs: int) -> None:
    check_product(weights, rows, outputs, inputs)


@pytest.mark.slow
class TestEveryShape:
    @pytest.mark.usefixtures("kind")
    @pytest.mark.parametrize("weights", TYPES)
    @pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
    @pytest.mark.parametrize("rows", ROWS)
    def test_it_is_a_product(self, weights: BlockType, rows: int, outputs: int, inputs: int) -> None:
        check_product(weights, rows, outputs, inputs)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", [each for each, form in FORMATS.items() if form.inputs == 32])
@pytest.mark.parametrize("inputs", [32, 224, 352])
def test_inputs_may_end_within_a_superblock(weights: BlockType, inputs: int) -> None:
    given, weight = random_rows(3, inputs), random_blocks(weights, 100, inputs)
    longer = torch.zeros(3, inputs + 256, dtype=given.dtype)
    longer[:, :inputs] = given
    padded = torch.cat([weight, random_blocks(weights, 100, 256)], 1)  # multiplied by zeros
    assert torch.equal(CompiledBlockGemm(weights, weight)(given), CompiledBlockGemm(weights, padded)(longer))


@pytest.mark.parametrize("weights", TYPES)
@pytest.mark.parametrize("byte", [None, 0x00, 0x7F, 0x80, 0xFF])
def test_all_kernels_give_the_same_bits(weights: BlockType, byte: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extreme bytes would saturate sums of 16 bits."""
    product = CompiledBlockGemm(weights, random_blocks(weights, 37, 1024, byte=byte))
    extremes = torch.tensor([3.0, -3.0]).repeat(4, 512).to(torch.bfloat16)
    given = torch.cat([random_rows(9, 1024), extremes.abs(), -extremes.abs(), extremes])
    found = [product(given) for _ in each_kind(monkeypatch)]
    assert all(torch.equal(each, found[0]) for each in found)
    assert found[0].float().abs().sum() > 0 or byte in (0x00, 0x80)  # zeros of some types


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", TYPES)
def test_a_row_has_the_same_bits_in_any_batch(weights: BlockType) -> None:
    product, given = CompiledBlockGemm(weights, random_blocks(weights, 45, 512)), random_rows(40, 512)
    assert_same_bits_in_any_batch(product, given)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", TYPES)
def test_threads_change_no_bit(weights: BlockType) -> None:
    product, given = CompiledBlockGemm(weights, random_blocks(weights, 600, 1024)), random_rows(20, 1024)
    assert_threads_change_no_bit(product, given)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", ["q8_0", "q4_1", "q4_k", "q6_k"])
def test_what_is_no_number_stays_in_its_row(weights: BlockType) -> None:
    product, given = CompiledBlockGemm(weights, random_blocks(weights, 20, 512)), random_rows(9, 512)
    expected = product(given)
    for strange in (float("nan"), float("inf"), -float("inf")):
        changed = given.clone()
        changed[3, 300] = strange
        found = product(changed)
        assert found[3].isnan().all()
        assert torch.equal(found[torch.arange(9) != 3], expected[torch.arange(9) != 3])


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", ["q8_0", "q4_1", "q4_k", "q6_k"])
def test_zeros_and_the_tiniest_numbers(weights: BlockType) -> None:
    product = CompiledBlockGemm(weights, random_blocks(weights, 20, 512))
    assert (product(torch.zeros(3, 512, dtype=torch.bfloat16)) == 0).all()
    tiny = torch.full((3, 512), 2.0**-133, dtype=torch.bfloat16)
    assert product(tiny).isfinite().all()
    tiny[0, :256] = 0
    assert product(tiny).isfinite().all()


def quantised(block: torch.Tensor) -> tuple[np.ndarray, np.float32]:
    """A block of a row as integers, and its largest magnitude."""
    values = block.float().numpy()
    most = np.abs(values).max()
    return np.rint(values * (np.float32(127) / most)).astype(int), most


@pytest.mark.usefixtures("kind")
def test_its_bits_are_those_of_the_definition() -> None:
    """Exact arithmetic, rounded where docs/engine.md says so."""
    weight, given = random_blocks("q8_0", 3, 128), random_rows(2, 128)
    found = CompiledBlockGemm("q8_0", weight)(given)
    for row in range(2):
        for output in range(3):
            total = np.float32(0)
            for block in range(4):
                quants, most = quantised(given[row, 32 * block : 32 * block + 32])
                unit = weight[output, 34 * block : 34 * block + 34].numpy()
                scale = np.float32(unit[:2].copy().view(np.float16)[0])
                whole = int((quants * unit[2:].copy().view(np.int8).astype(int)).sum())
                factor = scale * (most / np.float32(127))
                total = nearest(Fraction(float(factor)) * whole + Fraction(float(total)))
            assert found[row, output] == torch.tensor(float(total)).to(torch.bfloat16)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", ["q4_1", "q5_1"])
def test_the_bits_of_blocks_with_a_minimum_are_those_of_the_definition(weights: BlockType) -> None:
    weight, given = random_blocks(weights, 3, 128), random_rows(2, 128)
    found = CompiledBlockGemm(weights, weight)(given)
    units = weight.numpy().reshape(3, 4, FORMATS[weights].size)
    halves = units[..., :4].copy().view(np.float16).astype(np.float32)
    packed = units[..., -16:]
    integers = np.concatenate([packed & 15, packed >> 4], -1).astype(int)
    if weights == "q5_1":
        integers |= np.unpackbits(units[..., 4:8], axis=-1, bitorder="little").astype(int) << 4
    for row in range(2):
        for output in range(3):
            total = np.float32(0)
            for block in range(4):
                quants, most = quantised(given[row, 32 * block : 32 * block + 32])
                scale, minimum = halves[output, block]
                summed = scale * np.float32((quants * integers[output, block]).sum())
                summed = nearest(Fraction(float(summed)) + Fraction(float(minimum)) * int(quants.sum()))
                unit = most / np.float32(127)
                total = nearest(Fraction(float(unit)) * Fraction(float(summed)) + Fraction(float(total)))
            assert found[row, output] == torch.tensor(float(total)).to(torch.bfloat16)


@pytest.mark.parametrize("weights", [each for each in TYPES if HALVES[each]])
def test_a_scale_that_is_no_number_stays_in_its_output(weights: BlockType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file may have such scales."""
    raw, given = random_blocks(weights, 20, 512), random_rows(9, 512)
    expected = CompiledBlockGemm(weights, raw)(given)
    for place in HALVES[weights]:
        for bits in (0x7C00, 0xFC00, 0x7E00):  # infinite, and no number
            damaged = raw.clone()
            damaged[7, place : place + 2] = torch.tensor([bits & 255, bits >> 8], dtype=torch.uint8)
            product = CompiledBlockGemm(weights, damaged)
            for found in (product(given) for _ in each_kind(monkeypatch)):
                assert not found[:, 7].isfinite().any()
                others = torch.arange(20) != 7
                assert torch.equal(found[:, others], expected[:, others])


@pytest.mark.usefixtures("kind")
def test_the_bits_of_superblocks_are_those_of_the_definition() -> None:
    weight, given = random_blocks("q4_k", 3, 512), random_rows(2, 512)
    found = CompiledBlockGemm("q4_k", weight)(given)
    supers = weight.numpy().reshape(6, 144)
    scales, least = (each.astype(int) for each in gguf.quants.Q4_K.get_scale_min(supers[:, 4:16]))
    integers = (supers[:, 16:].reshape(6, 4, 1, 32) >> np.array([[0], [4]]) & 15).reshape(6, 8, 32)
    for row in range(2):
        for output in range(3):
            total = np.float32(0)
            for at in range(2):
                x = given[row, 256 * at : 256 * at + 256].float().numpy()
                most = np.abs(x).max()
                quants = np.rint(x * (np.float32(127) / most)).astype(int).reshape(8, 32)
                own = 2 * output + at
                whole = int((scales[own] * (quants * integers[own]).sum(1)).sum())
                off = int((least[own] * quants.sum(1)).sum())
                d, d_least = supers[own, :4].view(np.float16).astype(np.float32)
                summed = d * np.float32(whole)
                summed = nearest(Fraction(float(summed)) - Fraction(float(d_least)) * Fraction(float(np.float32(off))))
                unit = most / np.float32(127)
                total = nearest(Fraction(float(unit)) * Fraction(float(summed)) + Fraction(float(total)))
            assert found[row, output] == torch.tensor(float(total)).to(torch.bfloat16)


def of_the_page(weights: BlockType) -> torch.Tensor:
    """Returns the product of the weight and the row that docs/engine.md defines."""
    form, counted = FORMATS[weights], np.arange(16 * 256 // FORMATS[weights].inputs * FORMATS[weights].size)
    units = ((counted * 73 + 7) % 256).astype(np.uint8).reshape(16, -1, form.size)
    for place in HALVES[weights]:
        units[..., place : place + 2] = [0x00, 0x20]  # 2^-7 as float16
    if weights == "mxfp4":
        units[..., 0] = 120
    row = torch.tensor([(37 * i % 255 - 127) / 64 for i in range(256)]).to(torch.bfloat16)
    return CompiledBlockGemm(weights, torch.from_numpy(units.reshape(16, -1)))(row[None])[0]


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("weights", TYPES)
def test_vectors_of_the_documentation(weights: BlockType) -> None:
    assert_documented(weights, of_the_page(weights))


def test_where_it_can_be_had() -> None:
    assert can_multiply_blocks("q8_0", 96)
    assert not can_multiply_blocks("q8_0", 48)
    assert can_multiply_blocks("q4_k", 512)
    assert not can_multiply_blocks("q4_k", 96)


@pytest.mark.parametrize("weights", TYPES)
def test_sizes_are_those_of_gguf(weights: BlockType) -> None:
    form = FORMATS[weights]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[weights.upper()]] == (form.inputs, form.size)


@pytest.mark.parametrize("weights", TYPES)
def test_values_are_those_of_the_reference(weights: BlockType) -> None:
    raw = random_blocks(weights, 7, 1536)
    assert torch.equal(block_values(weights, raw), values(weights, raw).to(torch.bfloat16))
    some = raw[torch.tensor([4, 0])]
    assert torch.equal(block_values(weights, some), values(weights, some).to(torch.bfloat16))
