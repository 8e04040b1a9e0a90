"""Stand-ins for weights: code that multiplies by a weight on its own gets a packed product."""

import pytest
import torch
from torch import nn

from draftwire_core.engine.model.linear.linear_weight import weight_of
from draftwire_core.engine.model.linear.packed_weight import PackedWeight
from draftwire_core.engine.model.linear.row_exact import RowExactLinear


class Routing(nn.Module):
    def __init__(self, bias: bool = False, in_float32: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 32))
        self.bias = nn.Parameter(torch.randn(6)) if bias else None
        self.in_float32 = in_float32

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.in_float32:
            return nn.functional.linear(rows.type(torch.float32), self.weight.type(torch.float32))
        return nn.functional.linear(rows, self.weight, self.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("bias", "in_float32"), [(False, False), (True, False), (False, True)])
def test_the_code_gets_the_product(bias: bool, in_float32: bool, dtype: torch.dtype) -> None:
    module = Routing(bias, in_float32).to(dtype)
    rows = torch.randn(5, 32).to(dtype)
    expected = module(rows)
    PackedWeight.replace(module, RowExactLinear)
    found = module(rows)
    assert found.dtype == expected.dtype
    assert torch.allclose(found.float(), expected.float(), atol=1e-4 if expected.dtype == torch.float32 else 0.1)
    assert torch.equal(torch.cat([module(row[None]) for row in rows]), found)
    made = [each for each in module.modules() if isinstance(each, RowExactLinear)]
    assert len(made) == 1, "one for the type that is used"
    assert (module.weight.dtype, module.weight.shape, module.weight.device) == (dtype, (6, 32), rows.device)


def test_linear_layers_of_torch_keep_their_code() -> None:
    linear = nn.Linear(32, 6)
    rows = torch.randn(3, 32)
    expected = linear(rows)
    PackedWeight.replace(linear, RowExactLinear)
    assert weight_of(linear) is None, "it is replaced already"
    assert torch.allclose(linear(rows), expected, atol=1e-5)


def test_it_is_for_products_alone() -> None:
    module = Routing()
    PackedWeight.replace(module, RowExactLinear)
    with pytest.raises(TypeError):
        torch.add(torch.zeros(6, 32), module.weight)
