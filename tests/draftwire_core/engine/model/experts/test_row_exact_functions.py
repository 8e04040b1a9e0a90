"""Functions that give a row the same bits alone and among others, and the modules that run with them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from draftwire_core.engine.model.experts.row_exact_functions import RowExactFunctions, use_row_exact_functions

ROWS = 130
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "sigmoid of a tensor": lambda rows: rows.sigmoid(),
    "functional sigmoid": nn.functional.sigmoid,
    "silu": nn.functional.silu,
    "silu in place": lambda rows: nn.functional.silu(rows, inplace=True),
    "gelu": lambda rows: nn.functional.gelu(rows, approximate="tanh"),
    "softplus": lambda rows: nn.functional.softplus(rows, 2.0),
    "tanh": torch.tanh,
    "rsqrt": lambda rows: torch.rsqrt(rows.abs() + 0.1),
    "softmax": lambda rows: rows.softmax(-1),
    "softmax in float32": lambda rows: nn.functional.softmax(rows, dim=-1, dtype=torch.float32),
    "sum": lambda rows: rows.sum(dim=-1, keepdim=True),
    "sum of every other": lambda rows: torch.sum(rows[:, ::2], -1),
    "sum with numpy's names": lambda rows: torch.sum(rows, dim=-1, keepdims=True),
    "norm": lambda rows: torch.norm(rows, p=1, dim=-1, keepdim=True),
    "linear": lambda rows: nn.functional.linear(
        rows, torch.linspace(-1, 1, 5 * rows.shape[1]).view(5, -1).to(rows.dtype)
    ),
    "topk": lambda rows: rows.topk(1, dim=-1)[0],
    "sort": lambda rows: torch.sort(rows, dim=-1, descending=True).values,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_the_same_bits_in_any_batch(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    for width in (1, 3, 16, 60, 128):
        rows = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(width)).to(dtype)
        with RowExactFunctions():
            alone = torch.cat([function(rows[index : index + 1].clone()) for index in range(ROWS)])
            for count in (1, 2, 3, 7, 8, 17, 33, 64, ROWS):
                assert torch.equal(function(rows[:count].clone()), alone[:count])
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        assert torch.allclose(alone.float(), function(rows.clone()).float(), rtol=tolerance, atol=tolerance)


def test_long_tensors_with_several_threads() -> None:
    rows = torch.randn(700, 63)
    threads = torch.get_num_threads()
    with RowExactFunctions():
        expected = torch.sigmoid(rows)
        try:
            torch.set_num_threads(2)
            assert torch.equal(torch.sigmoid(rows), expected)
        finally:
            torch.set_num_threads(threads)


def test_groups_have_weights_of_their_own() -> None:
    rows, weights = torch.randn(3, 9, 16), torch.randn(3, 16, 5)
    with RowExactFunctions():
        together = torch.bmm(rows, weights)
        assert torch.equal(rows[:, :1].bmm(weights), together[:, :1])
    assert torch.allclose(together, torch.bmm(rows, weights), atol=1e-5)


def test_other_sums_are_those_of_torch() -> None:
    rows = torch.arange(12).view(3, 4)
    with RowExactFunctions():
        assert rows.sum() == 66
        assert rows.sum(0).tolist() == [12, 15, 18, 21]
        assert rows.sum(-1).tolist() == [6, 22, 38]
        assert rows.float().sum((0, 1), keepdim=True).shape == (1, 1)
        assert rows.float().norm(p=2, dim=-1).shape == (3,)


def test_of_equal_elements_the_first_comes_first() -> None:
    rows = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 2.0, -0.0]]).repeat(40, 40)
    with RowExactFunctions():
        best = torch.topk(rows, 4, dim=-1, sorted=False)
        least = rows.topk(3, largest=False)
        order = rows[0].sort(descending=True)[1]
    assert best.indices[7].tolist() == [1, 3, 5, 8] and best.values[7].tolist() == [2.0] * 4
    assert least.indices[7].tolist() == [0, 6, 7]
    assert order[:4].tolist() == [1, 3, 5, 8]


class Gated(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(rows)


class Plain(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + 1


def test_only_modules_that_call_them_run_with_them() -> None:
    model = nn.Sequential(Gated(), Plain(), nn.Sigmoid())
    use_row_exact_functions(model)
    use_row_exact_functions(model)
    gated, *others = model
    assert isinstance(gated, Gated) and type(gated) is not Gated and type(gated).__name__ == "Gated"
    assert type(gated).__mro__[1] is Gated, "twice is once"
    assert [type(other) for other in others] == [Plain, nn.Sigmoid]
    rows = torch.randn(300, 1)
    assert torch.equal(torch.cat([gated(row) for row in rows]), gated(rows).flatten())
