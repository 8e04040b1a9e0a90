"""A network begins with what its target has to give."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwire_core.training.dflash.initial_network import InitialOptions, initial_network
from draftwire_core.training.frozen_target.target_states import reading
from tests.harness.engine.engines import tiny_model
from tests.harness.models.tiny_checkpoint import write_checkpoint

LABELS = torch.tensor([[3 + (7 * start + place) % 50 for place in range(24)] for start in range(4)])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(write_checkpoint(tmp_path_factory.mktemp("target")))
    return model


def test_masks_look_at_their_root(base: PreTrainedModel) -> None:
    """In half of the first layer's heads, a mask's scores with roots are above those with features and masks."""
    labels = torch.cat([LABELS, torch.full((4, 4), -100)], dim=1)
    network = initial_network(base, InitialOptions(4, 2, 150), None, labels, seed=0)
    layer = network.model.get_decoder().layers[0]
    attention = layer.self_attn
    embed = network.model.get_input_embeddings()
    with torch.no_grad(), reading(base, network.aux_layers) as read:
        base(LABELS)
        features = network.mapping(torch.cat([read[each] for each in network.aux_layers], dim=-1)).flatten(0, 1)
        roots, masks = (layer.input_layernorm(embed(ids)) for ids in (LABELS.flatten(), torch.tensor([150])))
        first = attention.head_dim
        asked = attention.q_norm(attention.q_proj(masks)[:, :first])
        scores = [
            (attention.k_norm(attention.k_proj(rows)[:, :first]) @ asked.T).flatten() * attention.scaling
            for rows in (roots, features, masks)
        ]
    found = [float(each.mean()) for each in scores]
    assert found[0] > found[1] + 3, "a target this small does not have them all apart"
    assert found[0] > found[2] + 3


def test_layers_are_those_of_the_target_as_far_as_they_agree(base: PreTrainedModel) -> None:
    network = initial_network(base, InitialOptions(4, 1, 150), None, LABELS, seed=0)
    (layer,), its = network.model.get_decoder().layers, base.model.layers[-1]
    assert torch.equal(layer.mlp.down_proj.weight, its.mlp.down_proj.weight)
    assert torch.equal(layer.self_attn.v_proj.weight, its.self_attn.v_proj.weight)
    torch.testing.assert_close(network.model.get_decoder().norm.weight, base.model.norm.weight)
    deeper = initial_network(base, InitialOptions(4, 3, 150), None, LABELS, seed=0).model.get_decoder().layers
    assert torch.equal(deeper[1].mlp.up_proj.weight, its.mlp.up_proj.weight)
    assert bool(deeper[2].mlp.up_proj.weight.isfinite().all()), "the target has no third layer"


@pytest.mark.parametrize("family", ["Gemma2", "Qwen3", "OPT"])
def test_targets_whose_layers_are_others(family: str) -> None:
    """Norms mean the same there, whatever their weights do; layers of another make stay random."""
    target = tiny_model(family)
    network = initial_network(target, InitialOptions(4, 2, 5), None, LABELS, seed=0)
    norm, theirs = network.model.get_decoder().norm, getattr(target.get_decoder(), "norm", None)
    states = torch.randn(3, network.config.layers.hidden_size)
    if theirs is not None:
        torch.testing.assert_close(norm(states), theirs(states), rtol=1e-4, atol=1e-4)
    for part in network.model.modules():
        if isinstance(part, nn.Linear):
            assert bool(part.weight.isfinite().all())
