"""The projections of gated delta nets: joined, and the same numbers."""

import copy

import pytest
import torch
from torch import nn

from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.model.linear.linear_weight import OutputRange
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import packed, random_tokens, tiny_model, walk
from tests.harness.engine.recurrent_models import RECURRENT_MODELS

SIZES = {**RECURRENT_MODELS["Qwen3_5"], "hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
NETS = {"linear_key_head_dim": 32, "linear_value_head_dim": 64}


def joined_nets(model: nn.Module) -> int:
    return sum(isinstance(getattr(each, "joined_projection", None), nn.Module) for each in model.modules())


@pytest.mark.parametrize(("name", "count"), [("Qwen3_5", 3), ("Qwen3Next", 3), ("OlmoHybrid", 0)])
def test_the_nets_that_are_joined(name: str, count: int) -> None:
    assert joined_nets(packed(tiny_model(name, torch.float32, **RECURRENT_MODELS[name])).model) == count


def test_the_layers_that_were_joined_still_answer_one_by_one() -> None:
    model = tiny_model("Qwen3_5", torch.float32, **{**SIZES, **NETS})
    plain = copy.deepcopy(model)
    net = packed(model).model.get_decoder().layers[0].library_layer.linear_attn
    before = plain.model.layers[0].linear_attn
    rows = torch.randn(9, 128, generator=torch.Generator().manual_seed(1))
    for name in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"):
        assert isinstance(getattr(net, name), OutputRange)
        torch.testing.assert_close(getattr(net, name)(rows), getattr(before, name)(rows))


@pytest.mark.parametrize("weights", ["q8_0", "q4_0"])
def test_with_quantised_weights(weights: Weights) -> None:
    model = PackedModel(tiny_model("Qwen3_5", torch.bfloat16, **{**SIZES, **NETS}), 4000, weights=weights)
    assert joined_nets(model.model) == 3
    texts = [random_tokens(16, seed=1), random_tokens(14, seed=2)]
    one_by_one = walk(model, texts, [9, 5], trees=False, chunk=1, together=False)
    beside = walk(model, texts, [9, 5], seed=1, chunk=16)
    shared = beside.keys() & one_by_one.keys()
    assert len(shared) > 10 and all(torch.equal(beside[each], one_by_one[each]) for each in shared)


@pytest.mark.parametrize("weights", ["checkpoint", "int8", "q4_0"])
def test_as_a_draft_model(weights: Weights) -> None:
    model = tiny_model("Qwen3_5", torch.bfloat16, **{**SIZES, **NETS})
    plain = copy.deepcopy(model).float()
    draft = PackedModel(model, 4000, row_exact=False, weights=weights)
    assert joined_nets(draft.model) == 3
    rows = walk(draft, [random_tokens(20, seed=1)], [10])
    with torch.inference_mode():
        told = {path: plain(input_ids=torch.tensor([path]), use_cache=False).logits[0, -1] for path in rows}
    same = sum(int(rows[path].argmax() == told[path].argmax()) for path in rows)
    assert same > len(rows) / 10  # of 300 tokens; four bits change a random model a lot
