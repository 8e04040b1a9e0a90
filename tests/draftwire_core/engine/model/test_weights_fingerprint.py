"""Equal models have the same fingerprint, different ones a different one."""

import copy

import torch
from torch import nn

from draftwire_core.engine.model.weights_fingerprint import weights_fingerprint


def small(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 300), nn.LayerNorm(300), nn.Linear(300, 7, bias=False))


def test_equal_models() -> None:
    assert weights_fingerprint(small()) == weights_fingerprint(copy.deepcopy(small()))


def test_other_weights() -> None:
    trained_on = small()
    with torch.no_grad():
        for parameter in trained_on.parameters():
            parameter += 1e-4 * torch.randn_like(parameter)
    found = [small(), small(2), trained_on, small().to(torch.bfloat16), small()[:2]]
    assert len({weights_fingerprint(model) for model in found}) == len(found)


def test_another_type_of_keys_and_values() -> None:
    assert weights_fingerprint(small(), kv_dtype="q8_0") != weights_fingerprint(small(), kv_dtype="auto")
    assert weights_fingerprint(small(), "q8_0") != weights_fingerprint(small(), kv_dtype="q8_0")


def test_one_small_tensor_is_enough() -> None:
    other = small()
    with torch.no_grad():
        other[1].bias[0] = 1.0
    assert weights_fingerprint(other) != weights_fingerprint(small())
