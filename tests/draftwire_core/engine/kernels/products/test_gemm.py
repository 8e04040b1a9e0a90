"""The compiled product of bfloat16 and float16 weights: its results, and a row's bits in any batch."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.kernels.products import compiled_product
from draftwire_core.engine.kernels.products.gemm import CompiledGemm, can_multiply
from draftwire_core.engine.model.linear.row_exact import PackedProduct, RowExactLinear, can_pack
from tests.harness.kernels.gemm_kinds import NUMBERS, number_of

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


@pytest.fixture(params=["baseline", "avx2", "avx512", "avx512bf16", "amx"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    chosen = number_of(request.param)
    monkeypatch.setattr(compiled_product, "gemm_kind", lambda: chosen)
    return chosen


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


DTYPES = [torch.bfloat16, torch.float16]


THREADED = [(77, 512), (900, 1024)]
SHAPES = [(1, 32), (50, 96), (64, 64), (317, 512), (1300, 1536)]
ROWS = [1, 5, 16, 17, 32, 33, 100]
EACH_PAIR = [
    (rows, *shape, (place + number) % 2 == 0, DTYPES[(place + number // 2) % 2])
    for place, shape in enumerate(SHAPES[:-1])
    for number, rows in enumerate(ROWS)
] + [(5, *SHAPES[-1], True, torch.bfloat16), (33, *SHAPES[-1], False, torch.float16)]
"""Each number of rows with each shape but the largest; all combinations are slow."""


def check_product(rows: int, outputs: int, inputs: int, bias: bool, dtype: torch.dtype) -> None:
    given, weight = random(rows, inputs), random(outputs, inputs, seed=1, dtype=dtype)
    added = random(outputs, seed=2) if bias else None
    found = CompiledGemm(weight)(given, added)
    expected = given.double() @ weight.double().t() + (0 if added is None else added.double())
    # Half a unit of the final rounding, and the error of float32 sums.
    allowed = expected.abs() * 2**-8 + 1e-6 * inputs * (given.double().abs() @ weight.double().abs().t()).max()
    assert found.shape == (rows, outputs) and found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(("rows", "outputs", "inputs", "bias", "dtype"), EACH_PAIR)
def test_it_is_a_product(rows: int, outputs: int, inputs: int, bias: bool, dtype: torch.dtype) -> None:
    check_product(rows, outputs, inputs, bias, dtype)


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.usefixtures("kind")
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
    @pytest.mark.parametrize("rows", ROWS)
    def test_it_is_a_product(self, rows: int, outputs: int, inputs: int, bias: bool, dtype: torch.dtype) -> None:
        check_product(rows, outputs, inputs, bias, dtype)

    @pytest.mark.usefixtures("kind")
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(("outputs", "inputs"), THREADED)
    def test_threads_change_no_bit(self, outputs: int, inputs: int, dtype: torch.dtype) -> None:
        check_threads(outputs, inputs, dtype)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    """The result is zero up to rounding, so another order of summation shows at once."""
    half, weights = random(130, 256), random(77, 256, seed=1, dtype=dtype)
    order = torch.randperm(512, generator=torch.Generator().manual_seed(2))
    given = torch.cat([half, half], 1)[:, order].contiguous()
    product = CompiledGemm(torch.cat([weights, -weights], 1)[:, order].contiguous())
    together = product(given)
    assert together.float().abs().sum() > 0
    for count in [*range(1, 68), 95, 96, 97, 127, 128, 129, 130]:
        assert torch.equal(product(given[:count]), together[:count])
        assert torch.equal(product(given[130 - count :]), together[130 - count :])


def test_without_bfloat16_products_bits_are_the_same_with_any_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    product, added = CompiledGemm(random(77, 512, seed=1)), random(77, seed=2)
    given = random(30, 512)
    found = []
    for chosen in (number for name, number in NUMBERS.items() if name not in ("avx512bf16", "amx")):
        monkeypatch.setattr(compiled_product, "gemm_kind", lambda chosen=chosen: chosen)
        found.append([product(given[:count], added) for count in (1, 4, 13, 30)])
    assert all(torch.equal(one, other) for each in found for one, other in zip(each, found[0], strict=True))


def test_of_float16_weights_all_kernels_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All finite numbers of the type are weights, the smallest of which are denormal."""
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.float16)
    weight = numbers[numbers.isfinite()][: 1 << 15 & ~2047].view(-1, 1024)
    product, given = CompiledGemm(weight), random(30, 1024)
    product.wide = True
    expected = given.double() @ weight.double().t()
    found = []
    for chosen in NUMBERS.values():
        monkeypatch.setattr(compiled_product, "gemm_kind", lambda chosen=chosen: chosen)
        found.append([product(given[:count]) for count in (1, 2, 4, 13, 30)])
    assert all(torch.equal(one, other) for each in found for one, other in zip(each, found[0], strict=True))
    assert torch.allclose(found[0][-1].double(), expected, rtol=1e-5, atol=0.1)


@pytest.mark.usefixtures("kind")
def test_a_float16_weight_keeps_its_bits() -> None:
    """Each output is the sum of one weight with a row of one 1: denormal, infinite and no number as well."""
    numbers = torch.arange(-(1 << 15), 1 << 15, 31, dtype=torch.int16).view(torch.float16)
    weight = torch.zeros(len(numbers), 32, dtype=torch.float16)
    weight[:, 5] = numbers
    product = CompiledGemm(weight)
    product.wide = True
    row = torch.zeros(1, 32, dtype=torch.bfloat16)
    row[0, 5] = 1
    assert torch.equal(product(row)[0].nan_to_num(7, 8, 9), numbers.float().nan_to_num(7, 8, 9))


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(("shape", "dtype"), [*zip(THREADED, DTYPES, strict=True)])
def test_threads_change_no_bit(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check_threads(*shape, dtype)


def check_threads(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    product, given = CompiledGemm(random(outputs, inputs, seed=1, dtype=dtype)), random(70, inputs)
    alone = product(given)
    for threads in (2, 3, 20):
        torch.set_num_threads(threads)
        for count in (1, 2, 16, 33, 70):
            assert torch.equal(product(given[:count]), alone[:count])


@pytest.mark.usefixtures("kind")
def test_callers_at_the_same_time_do_not_meet() -> None:
    given = random(9, 512)
    products = [CompiledGemm(random(900, 512, seed=seed)) for seed in range(1, 7)]
    expected = [product(given) for product in products]

    def repeat(index: int) -> bool:
        torch.set_num_threads(2 + index % 2)
        return all(torch.equal(products[index](given), expected[index]) for _ in range(10))

    with ThreadPoolExecutor(len(products)) as callers:
        assert all(callers.map(repeat, range(len(products))))


@pytest.mark.usefixtures("kind")
def test_what_is_not_a_number_stays_in_its_row() -> None:
    given = random(20, 64)
    expected = CompiledGemm(random(48, 64, seed=1))(given)
    given[3] = float("nan")
    found = CompiledGemm(random(48, 64, seed=1))(given)
    assert found[3].isnan().all()
    assert torch.equal(torch.cat([found[:3], found[4:]]), torch.cat([expected[:3], expected[4:]]))


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="oneDNN has no bfloat16 products here")
@pytest.mark.usefixtures("kind")
def test_the_library_goes_on_beside_it() -> None:
    """Both use the processor's tile registers, whose shapes are per-thread state."""
    weight, given = random(96, 128), random(24, 128, seed=1)
    ours, theirs = CompiledGemm(weight), PackedProduct(weight)
    expected = theirs(given)
    for rows in (1, 24, 7, 24, 20):
        ours(given[:rows])
        assert torch.equal(theirs(given), expected)


def test_where_it_can_be_had() -> None:
    weight = random(64, 64)
    assert can_multiply(weight)
    assert not can_multiply(weight.float())
    assert not can_multiply(weight.half()), "rows would be float16, too"
    assert can_multiply(weight.half(), torch.float16)
    assert not can_multiply(random(64, 48))
    torch.set_num_threads(2)
    assert can_multiply(weight)


def test_layers_take_it() -> None:
    layer = RowExactLinear(random(64, 64), None)
    assert isinstance(layer.product, CompiledGemm)
    assert (layer.rows.least, layer.rows.most) == (1, 256)
    assert layer(random(1, 300, 64)).shape == (1, 300, 64)
