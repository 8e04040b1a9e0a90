"""Features are computed once for all drafters of a kind, by maps whose weights are numbers."""

import hashlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from draftwire_core.adapters.common import step_features
from draftwire_core.adapters.common.step_features import FeatureRows, FeatureTaps, StepFeatures
from draftwire_core.runtime.errors import ServiceError

HIDDEN, WIDTH, ROWS = 6, 5, 3
STATES = [torch.ones(ROWS, HIDDEN), torch.ones(ROWS, HIDDEN)]


def weights(seed: int) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2 * HIDDEN * WIDTH, generator=generator).numpy().tobytes()


def announced(values: bytes) -> FeatureMapMessage:
    return FeatureMapMessage(
        layers=[1, 2],
        hidden_size=HIDDEN,
        width=WIDTH,
        dtype="float32",
        weights_dtype="float32",
        weights_sha256=hashlib.sha256(values).hexdigest(),
    )


def features_of(*values: bytes) -> StepFeatures:
    by_hash = {hashlib.sha256(each).hexdigest(): each for each in values}

    async def fetch(address: str, sha256: str, size: int) -> bytearray:
        return bytearray(by_hash[sha256])

    taps: Any = SimpleNamespace(
        architecture="", layers=4, hidden_size=HIDDEN, tapped=(1, 2), device=torch.device("cpu"), dtype=torch.float32
    )
    return StepFeatures(cast(FeatureTaps, taps), fetch, lambda: None)


async def test_drafters_of_a_kind_share_a_map() -> None:
    first, second = weights(1), weights(2)
    made = features_of(first, second)
    for source, values in (("a", first), ("b", first), ("c", second)):
        await made.prepare(source, "x:1", announced(values))
    computed = made.compute(STATES)
    assert len(computed) == 2
    made.add(7, ROWS, ["a", "b"], FeatureRows(0, computed))
    assert [each.source for each in made.take()] == ["a", "b"]
    for source in ("a", "b", "c"):
        made.forget(source)
    assert not made


async def test_all_kinds_together_are_no_wider_than_a_verifiers() -> None:
    kinds = [torch.full((2 * HIDDEN * 4 * HIDDEN,), float(number)).numpy().tobytes() for number in range(5)]
    made = features_of(*kinds)
    for number, values in enumerate(kinds):
        announcement = announced(values)
        announcement.width = 4 * HIDDEN
        if number < 4:
            await made.prepare(str(number), "x:1", announcement)
        else:
            with pytest.raises(ServiceError, match="24 more would exceed 16 times") as caught:
                await made.prepare(str(number), "x:1", announcement)
            assert caught.value.reason_name == "AT_CAPACITY"
    assert len(made.compute(STATES)) == 4


async def test_those_of_a_paused_drafter_wait_and_the_last_of_them_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    values = weights(1)
    made = features_of(values)
    await made.prepare("a", "x:1", announced(values))
    monkeypatch.setattr(step_features, "_MOST_HELD", 7 * WIDTH * 4)
    computed = made.compute(STATES)
    for first in range(0, 12, ROWS):
        made.add(7, first + ROWS, ["a"], FeatureRows(first, computed), resting={"a"})
    assert made.take(resting={"a"}) == []
    made.add(8, ROWS, ["a"], FeatureRows(0, computed), resting={"a"}, always=True)
    made.add(7, 12 + ROWS, ["a"], FeatureRows(12, computed), resting={"a"})
    assert [(each.sequence_id, each.first_position) for each in made.take(resting={"a"})] == [(8, 0)]
    made.add(7, 15 + ROWS, ["a"], FeatureRows(15, computed))
    assert [(each.sequence_id, each.first_position) for each in made.take()] == [(7, 9), (7, 12), (7, 15)]
    assert made.take() == []


async def test_weights_that_are_no_numbers_are_refused() -> None:
    values = torch.full((2 * HIDDEN * WIDTH,), torch.inf).numpy().tobytes()
    made = features_of(values)
    with pytest.raises(ServiceError, match="weights must be finite numbers"):
        await made.prepare("a", "x:1", announced(values))
    assert not made


async def test_a_map_for_which_there_is_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(step_features.FeatureMap, "of", refuse)
    made = features_of(weights(1))
    with pytest.raises(ServiceError, match="not enough memory for the features") as caught:
        await made.prepare("a", "x:1", announced(weights(1)))
    assert caught.value.reason_name == "AT_CAPACITY" and not made
