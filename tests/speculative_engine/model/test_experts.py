"""Mixtures of experts: what transformers' say, with the same bits for a row in any company."""

import copy

import pytest
import torch
from torch import nn

from speculative_engine.kernels.library import LIBRARY
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.experts import Experts, Router, replace_experts
from speculative_engine.model.linear.block_linear import BlockLinear
from speculative_engine.model.linear.row_exact import RowExactLinear
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.weight_names import TargetWeights
from tests.harness.engine.engines import check_against_plain, random_tokens, tiny_model, walk

NAMES = ["Mixtral", "Qwen3Moe", "GptOss"]
SIZES = {"moe_intermediate_size": 64}
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


@pytest.mark.parametrize("name", NAMES)
def test_they_say_what_those_of_transformers_say(name: str) -> None:
    model = tiny_model(name, **SIZES)
    ours = PackedModel(copy.deepcopy(model), 1000)
    assert [type(each) for each in ours.model.modules() if isinstance(each, Experts | Router)]
    texts = [random_tokens(40, seed=seed) for seed in range(2)]
    assert check_against_plain(model, walk(ours, texts, [20, 5])) < 1e-4


@needs_library
@pytest.mark.parametrize("weights", ["checkpoint", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_same_bits_in_any_company(name: str, weights: TargetWeights) -> None:
    ours = PackedModel(tiny_model(name, torch.bfloat16, **SIZES), 1000, weights=weights)
    assert run_self_test(ours).bit_exact
    texts = [random_tokens(60, seed=seed) for seed in range(4)]
    together = walk(ours, texts, [40, 20, 5, 30])
    alone = walk(ours, texts, [1] * 4, trees=False, together=False)
    both = together.keys() & alone.keys()
    assert len(both) > 100
    assert all(torch.equal(together[prefix], alone[prefix]) for prefix in both)
    kinds = {type(each) for experts in ours.model.modules() if isinstance(experts, Experts) for each in experts.down}
    inputs = {"Mixtral": 176, "Qwen3Moe": 64, "GptOss": 176}[name]  # blocks have 32
    assert kinds == {RowExactLinear if weights == "checkpoint" or inputs % 32 else BlockLinear}
    routers = [each for each in ours.model.modules() if isinstance(each, Router)]
    assert routers and all(isinstance(each.linear, RowExactLinear) for each in routers)


@pytest.mark.parametrize("name", NAMES)
def test_of_equal_experts_the_first_are_taken(name: str) -> None:
    model = tiny_model(name, **SIZES)

    def plain(weight: object, bias: torch.Tensor | None) -> nn.Module:
        assert isinstance(weight, torch.Tensor)
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        made.weight = nn.Parameter(weight * 0)
        if bias is not None:
            made.bias = nn.Parameter(bias * 0)
        return made

    replace_experts(model, plain, plain)
    router = next(each for each in model.modules() if isinstance(each, Router))
    _, shares, chosen = router(torch.randn(3, 64))
    assert chosen.tolist() == [[0, 1]] * 3
    if router.normalised or router.of_chosen:
        assert torch.equal(shares, torch.full((3, 2), 0.5))
