"""Of held states, each slot's latest are found, and none of a slot that has been forgotten or of long ago."""

import random

import numpy as np
import pytest
import torch

from draftwire_core.engine.model.features import held_states
from draftwire_core.engine.model.features.held_states import HeldStates


def taken(held: HeldStates, wanted: np.ndarray | None = None) -> dict[int, float]:
    """Takes states, the first elements by slot."""
    slots, states = held.take(wanted)
    return {} if states is None else dict(zip(slots.tolist(), states[:, 0].tolist(), strict=True))


def test_the_latest_of_each_slot_is_found() -> None:
    held = HeldStates()
    assert not held._passes
    held.forget(np.array([5]))
    assert not held._passes
    held.hold(np.array([3, 4]), torch.tensor([[3.0], [4.0]]))
    held.hold(np.array([4, 9]), torch.tensor([[14.0], [19.0]]))
    held.forget(np.array([3, 7]))
    assert taken(held) == {4: 14.0, 9: 19.0}
    assert not held._passes


def test_a_pass_with_more_rows_than_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_states, "MOST_ROWS", 3)
    held = HeldStates()
    held.hold(np.array([1]), torch.ones(1, 2))
    held.hold(np.arange(2, 7), torch.arange(2.0, 7).unsqueeze(1).expand(5, 2))
    assert taken(held) == {4: 4.0, 5: 5.0, 6: 6.0}


@pytest.mark.parametrize("seed", range(5))
def test_against_a_dictionary(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_states, "MOST_ROWS", 1000)
    drawn, held, expected = random.Random(seed), HeldStates(), {}
    for number in range(40):
        slots = drawn.sample(range(12), drawn.randint(1, 6))
        if drawn.random() < 0.3:
            held.forget(np.array(slots))
            for slot in slots:
                expected.pop(slot, None)
        else:
            values = [number * 100.0 + slot for slot in slots]
            held.hold(np.array(slots), torch.tensor(values).unsqueeze(1))
            expected |= dict(zip(slots, values, strict=True))
        if drawn.random() < 0.2:
            some = np.array(drawn.sample(range(12), drawn.randint(0, 12)), dtype=np.int64)
            assert taken(held, some) == {slot: expected.pop(slot) for slot in some.tolist() if slot in expected}
        if drawn.random() < 0.1:
            assert taken(held) == expected
            expected.clear()
    assert taken(held) == expected
    assert taken(held) == {}
