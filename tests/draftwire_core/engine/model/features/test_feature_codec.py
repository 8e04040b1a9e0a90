"""Features survive their encoding, in 8 bits within the stated error."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.model.features.feature_codec import FEATURE_TYPES, FLOATS, decode, encode, feature_bytes


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_exact(dtype: str) -> None:
    features = torch.randn(3, 7).to(FLOATS[dtype])
    values = encode(features, dtype)
    assert len(values) == 3 * feature_bytes(7, dtype)
    assert torch.equal(decode(values, 7, dtype), features)


@given(st.lists(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=5, max_size=5), min_size=1, max_size=4))
def test_eight_bits_are_off_by_at_most_half_a_step(rows: list[list[float]]) -> None:
    features = torch.tensor(rows)
    values = encode(features, "int8")
    assert len(values) == len(rows) * (4 + 5)
    largest = features.abs().amax(dim=1, keepdim=True)
    off = (decode(values, 5, "int8") - features).abs()
    assert bool((off <= largest / 254 * (1 + 1e-5) + 1e-44).all())


@pytest.mark.parametrize("dtype", FEATURE_TYPES)
@pytest.mark.parametrize("count", [0, 1])
def test_parts_of_features_are_refused(dtype: str, count: int) -> None:
    values = bytes(feature_bytes(6, dtype) - 1) if count else b""
    with pytest.raises(ValueError, match=f"must be a multiple of {feature_bytes(6, dtype)} bytes"):
        decode(values, 6, dtype)
