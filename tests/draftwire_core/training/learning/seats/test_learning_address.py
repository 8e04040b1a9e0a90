"""The address of a drafter in the verifier that can learn."""

import pytest

from draftwire_core.training.learning.seats.learning_address import LearningAddress
from verifier_service.reading.local_address import read_local_address


@pytest.mark.parametrize("address", ["local:ngram", "127.0.0.1:50052", "local:draft", "local:draft?kv_slots=512"])
def test_other_drafters_are_none(address: str) -> None:
    assert LearningAddress.parse(address) is None


@pytest.mark.parametrize(
    ("address", "replaced"),
    [
        ("local:draft?model=/a/b.gguf&kv_slots=8192", "local:draft?model=/new v&kv_slots=8192&weights=q8_0"),
        ("local:draft?model=m&weights=int8", "local:draft?model=/new v&weights=int8"),
        ("local:recurrent", "local:recurrent?model=/new v"),
        ("local:recurrent?model=m", "local:recurrent?model=/new v"),
    ],
)
def test_another_model_gets_the_same_options(address: str, replaced: str) -> None:
    found = LearningAddress.parse(address)
    assert found is not None
    assert found.address == address
    new = found.of("/new v", "q8_0").address
    assert new == replaced.replace(" ", "%20")
    normal = read_local_address("address", new)
    again = LearningAddress.parse(normal)
    assert again is not None
    assert again.model == "/new v", "the verifier reads it as it was meant"
    if found.model:
        assert found.of("/new").address == address.replace(f"={found.model}", "=/new")
