"""Feature maps compute the same from their weights' bytes, and refuse other numbers of bytes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape

SHAPES = [
    FeatureShape(3, 8, 5),
    FeatureShape(2, 8, 16, norm_states=True),
    FeatureShape(2, 8, 6, norm_each_state=True, norm_features=True, epsilon=1e-5),
    FeatureShape(2, 8, 16, norm_features=True, unmapped=True),
]


def random_map(shape: FeatureShape, dtype: torch.dtype = torch.float32) -> FeatureMap:
    torch.manual_seed(1)
    made = FeatureMap(shape).to(dtype).requires_grad_(False)
    for parameter in made.parameters():
        parameter.copy_(torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_map_comes_from_its_bytes(shape: FeatureShape, dtype: torch.dtype) -> None:
    made = random_map(shape, dtype)
    weights = bytearray(b"".join(made.weight_bytes(100)))
    assert max(map(len, made.weight_bytes(100))) <= 100
    again = FeatureMap.of(shape, weights, dtype)
    states = torch.randn(4, shape.states * shape.hidden_size, dtype=dtype)
    assert torch.equal(again(states), made(states))
    assert again(states).shape == (4, shape.width)
    assert again.digest() == made.digest()


def test_any_weight_changes_the_digest() -> None:
    made = random_map(SHAPES[2])
    before = made.digest()
    assert made.output_norm is not None
    made.output_norm.weight[3] += 1
    assert made.digest() != before


def test_each_norm_is_applied_in_its_place() -> None:
    shape = FeatureShape(2, 4, 3, norm_each_state=True, norm_features=True, epsilon=0.0)
    made = random_map(shape)
    states = torch.randn(5, 8)

    def normed(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return values / values.square().mean(-1, keepdim=True).sqrt() * weight

    assert made.fc_norm is not None
    assert made.fc is not None
    assert made.output_norm is not None
    each = torch.cat([normed(states[:, :4], made.fc_norm[0].weight), normed(states[:, 4:], made.fc_norm[1].weight)], 1)
    expected = normed(each @ made.fc.weight.T, made.output_norm.weight)
    torch.testing.assert_close(made(states), expected)


@given(
    weights=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8, max_size=8),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_no_weight_is_denormal(weights: list[float], dtype: torch.dtype) -> None:
    """Nor a product of two with a state of the usual size."""
    shape = FeatureShape(1, 8, 8, unmapped=True, norm_features=True)
    given = torch.tensor(weights).clamp(-1e4, 1e4).to(dtype)
    made = FeatureMap.of(shape, bytearray(given.view(torch.uint8).numpy().tobytes()), dtype)
    assert made.output_norm is not None
    found = made.output_norm.weight.float()
    kept = found != 0
    assert torch.equal(found[kept], given.float()[kept])
    assert (given[~kept].float().abs() < 1e-12).all()
    assert (found[kept].square() * 1e-6 > torch.finfo(torch.float32).tiny).all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused(wrong: float) -> None:
    weights = torch.randn(SHAPES[0].weights)
    weights[70] = wrong
    with pytest.raises(ValueError, match="weights must be finite numbers"):
        FeatureMap.of(SHAPES[0], bytearray(weights.numpy().tobytes()), torch.float32)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        FeatureMap(FeatureShape(1, 4, 4, norm_states=True, norm_each_state=True))
    with pytest.raises(ValueError, match="features without a map are 16 wide, not 8"):
        FeatureMap(FeatureShape(2, 8, 8, unmapped=True))
    with pytest.raises(ValueError, match=r"120 weights of torch\.float32 take 480 bytes"):
        FeatureMap.of(SHAPES[0], bytearray(479), torch.float32)
