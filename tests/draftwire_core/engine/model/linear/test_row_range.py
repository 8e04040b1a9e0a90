"""Products are tested for the row counts that give a row the same bits, and used with those only."""

from collections.abc import Callable

import pytest
import torch

from draftwire_core.engine.model.linear.row_exact import PlainProduct, RowExactLinear, TurnedProduct
from draftwire_core.engine.model.linear.row_range import RowRange, row_range


def with_bits_of(order: Callable[[int], int]) -> Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """Makes products that sum their inputs in `order(rows)` parts, like a library with several kernels."""

    def make(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def product(rows: torch.Tensor) -> torch.Tensor:
            parts = order(len(rows))
            pairs = zip(rows.double().chunk(parts, 1), weight.double().chunk(parts, 1), strict=True)
            return sum((a @ b.T).float() for a, b in pairs)

        return product

    return make


def check_batch_invariance(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """A row has the same bits among any number of rows."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(outputs, inputs // 2, generator=generator)
    rows = torch.randn(300, inputs // 2, generator=generator)
    # These sums cancel except for their rounding.
    weight, rows = torch.cat([half, -half], 1).to(dtype), torch.cat([rows, rows], 1).to(dtype)
    layer = RowExactLinear(weight, None)
    alone = torch.cat([layer(row.unsqueeze(0)) for row in rows])
    for count in (1, 2, 3, 7, 8, 16, 31, 33, 37, 40, 64, 65, 100, 129, 200, 257, 300):
        assert torch.equal(layer(rows[:count]), alone[:count]), count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (512, 512), (384, 704)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    check_batch_invariance(outputs, inputs, dtype)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (lambda rows: 4, RowRange(1, 256)),
        (lambda rows: 2 if rows > 32 else 4, RowRange(1, 32)),
        (lambda rows: 2 if rows == 1 else 4, RowRange(2, 256)),
        (lambda rows: 2 if rows < 8 or rows > 100 else 4, RowRange(8, 64)),
        (lambda rows: rows % 4 + 1, RowRange(16, 16)),
    ],
)
def test_kernels_that_differ_are_found(order: Callable[[int], int], expected: RowRange) -> None:
    assert row_range(with_bits_of(order), 32, 240, torch.float32) == expected


def test_a_layer_keeps_to_its_range() -> None:
    weight, bias = torch.randn(8, 16), torch.randn(8)
    seen = []

    class Counting(PlainProduct):
        def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            seen.append(len(rows))
            return super().forward(rows, bias)

    layer = RowExactLinear(weight, bias)
    layer.product, layer.rows = Counting(weight), RowRange(4, 20)
    for shape in ((45, 16), (1, 45, 16), (3, 16), (0, 16)):
        inputs = torch.randn(shape)
        assert torch.allclose(layer(inputs), torch.nn.functional.linear(inputs, weight, bias), atol=1e-5)
    assert seen == [20, 20, 5, 20, 20, 5, 4]


def test_the_turned_product_is_the_product() -> None:
    weight, bias, rows = torch.randn(8, 16), torch.randn(8), torch.randn(5, 16)
    assert torch.allclose(TurnedProduct(weight)(rows, bias), torch.nn.functional.linear(rows, weight, bias), atol=1e-5)


@pytest.mark.slow
class TestLarge:
    """A layer of more outputs than the others."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_row_has_the_same_bits_among_any_number_of_rows(self, dtype: torch.dtype) -> None:
        check_batch_invariance(1536, 1100, dtype)
