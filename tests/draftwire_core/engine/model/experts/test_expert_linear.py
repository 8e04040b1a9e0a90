"""Linear layers of several experts: rows get what their own expert says, whoever else is there."""

import pytest
import torch
from torch import nn

from draftwire_core.engine.model.experts.experts import ExpertLinear
from draftwire_core.engine.model.linear.block_linear import maker
from draftwire_core.engine.model.linear.linear_weight import JoinedLinear
from draftwire_core.engine.model.linear.row_exact import RowExactLinear

EXPERTS, INPUTS, OUTPUTS = 6, 64, 40
TAKEN = {
    "one row": [4],
    "one expert": [2] * 9,
    "nobody takes some": [0, 0, 3, 5, 5, 5],
    "many rows": [expert for expert in range(EXPERTS) for _ in range(3 + 20 * expert)],
}


def linears(kind: str) -> list[nn.Module]:
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    make = maker(RowExactLinear, "q8_0" if kind == "q8_0" else None)
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for _ in range(EXPERTS):
        bias = torch.randn(OUTPUTS).to(dtype)
        weight = torch.randn(OUTPUTS, INPUTS).to(dtype)
        if kind == "joined":
            others = maker(RowExactLinear, "q8_0")
            made.append(JoinedLinear([make(weight[:16], bias[:16]), others(weight[16:], bias[16:])]))
        else:
            made.append(make(weight, bias))
    return made


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "q8_0", "joined"])
@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
def test_rows_get_what_their_expert_says(taken: list[int], kind: str) -> None:
    layers = linears(kind)
    together = ExpertLinear(layers)
    rows = torch.randn(len(taken), INPUTS, dtype=torch.float32 if kind == "float32" else torch.bfloat16)
    found = together(rows, torch.tensor(taken))
    expected = torch.cat([layers[expert](row[None]) for expert, row in zip(taken, rows, strict=True)])
    assert torch.equal(found, expected)
    assert found.shape == (len(taken), OUTPUTS) == (len(taken), together.out_features)


def test_each_expert_multiplies_its_rows_once() -> None:
    together = ExpertLinear(linears("float32"))
    calls: list[tuple[int, int]] = []
    for index, linear in enumerate(together.linears):
        linear.register_forward_pre_hook(lambda _, inputs, index=index: calls.append((index, len(inputs[0]))))
    together(torch.randn(6, INPUTS), torch.tensor(TAKEN["nobody takes some"]))
    assert calls == [(0, 2), (3, 1), (5, 3)]
