"""Hidden states between the layers: the library's own, in every kind of pass, and no bit of the logits changes."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.training.frozen_target.target_states import reading
from tests.harness.engine.attention_models import ATTENTION_MODELS
from tests.harness.engine.engines import packed, random_tokens, tiny_model

TOKENS = random_tokens(23, seed=5)
KINDS = [
    ("Llama", torch.float32),
    ("Llama", torch.bfloat16),  # all layers compiled, without transformers' code around them
    ("Qwen3", torch.bfloat16),
    ("Mixtral", torch.float32),
    ("Gemma2", torch.float32),
    ("GPT2", torch.float32),
]


def tap_of(model: PackedModel, layers: tuple[int, ...]) -> Tap:
    width = len(layers) * model.hidden_size
    return Tap(layers, nn.Identity(), SlotStates(model.pool.capacity, width, torch.float32))


def read(model: PackedModel, tap: Tap | None) -> tuple[torch.Tensor, np.ndarray]:
    """Computes the tokens in three chunks; returns the last chunk's logits, and the slots."""
    held = np.empty(0, dtype=np.int64)
    for first, last in ((0, 9), (9, 20), (20, 23)):
        builder = BatchBuilder()
        slots = model.pool.take(last - first)
        rows = [builder.add_row(TOKENS[at], at, int(slots[at - first]), wants_logits=True) for at in range(first, last)]
        builder.add_lane(held, rows)
        batch = builder.build(model.group_size, model.device)
        batch.taps = [] if tap is None else [tap]
        logits = model.forward(batch)
        held = np.concatenate([held, slots])
    return logits, held


@pytest.mark.parametrize(("architecture", "dtype"), KINDS)
def test_they_are_the_librarys_and_change_no_bit(architecture: str, dtype: torch.dtype) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 192, "head_dim": 64} if dtype == torch.bfloat16 else {}
    library = tiny_model(architecture, dtype, **sizes)
    model = packed(library, 100)
    tap = tap_of(model, (0, 2, 3))
    logits, slots = read(model, tap)
    alone, _ = read(packed(library, 100), None)
    assert torch.equal(logits, alone)
    with torch.inference_mode():
        states = library(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
        last: list[torch.Tensor] = []
        layer = (library.model.layers if hasattr(library, "model") else library.transformer.h)[2]
        hook = layer.register_forward_hook(lambda *call: last.append(call[2]))
        library(torch.tensor([TOKENS]))
        hook.remove()
    expected = torch.cat([states[0][0], states[2][0], (last[0][0] if isinstance(last[0], tuple) else last[0])[0]], 1)
    found = tap.states.read(slots)
    scale = expected.float().std()
    assert ((found - expected.float()).abs().max() / scale).item() < (1e-3 if dtype == torch.float32 else 0.2)


def test_the_first_of_several_streams_is_read() -> None:
    """In Gemma 3n, in serving as in training."""
    library = tiny_model("Gemma3n", **ATTENTION_MODELS["shared keys, predicted layers"][1])
    model, layers = packed(library, 100), (0, 2, 6)
    tap = tap_of(model, layers)
    logits, slots = read(model, tap)
    assert torch.equal(logits, read(packed(library, 100), None)[0])
    with torch.inference_mode(), reading(library, layers) as found:
        library(torch.tensor([TOKENS]), use_cache=False)
    expected = torch.cat([found[layer][0] for layer in layers], dim=1)
    torch.testing.assert_close(tap.states.read(slots), expected, rtol=1e-3, atol=1e-3)


def test_two_taps_read_in_one_pass() -> None:
    model = packed(tiny_model("Llama"), 100)
    taps = [tap_of(model, (1,)), tap_of(model, (2, 1))]
    builder = BatchBuilder()
    slots = model.pool.take(5)
    builder.add_lane(slots[:0], [builder.add_row(5 + at, at, int(slots[at]), wants_logits=at == 4) for at in range(5)])
    batch = builder.build(model.group_size, model.device)
    batch.taps = taps
    model.forward_with_states(batch)
    assert torch.equal(taps[0].states.read(slots), taps[1].states.read(slots)[:, 64:])
    assert taps[0].take_seconds() > 0
    assert taps[0].take_seconds() == 0


def test_what_is_known() -> None:
    states = SlotStates(9, 4, torch.float32)
    states.write(torch.tensor([2, 3, 4]), torch.arange(12.0).view(3, 4))
    assert states.known(np.array([1, 2, 3, 4])).tolist() == [False, True, True, True]
    states.forget(np.array([3]))
    assert states.known(np.array([2, 3])).tolist() == [True, False]
    assert states.read(np.array([4]))[0].tolist() == [8, 9, 10, 11]
    assert not states.read(np.array([0])).any(), "what pads passes must be finite"


class SlowMap(nn.Module):
    """A map that takes a second for each row."""

    now = 0.0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.now += len(states)
        return states


@pytest.mark.parametrize(("share", "mapped"), [(0.0, 16), (0.32, 32), (0.5, 50), (2.0, 100)])
def test_mapping_takes_a_share_of_the_pass_and_the_last_rows_come_first(
    monkeypatch: pytest.MonkeyPatch, share: float, mapped: int
) -> None:
    mapping = SlowMap()
    monkeypatch.setattr(time, "thread_time", lambda: mapping.now)
    tap = Tap([0], mapping, SlotStates(200, 4, torch.float32))
    tap.most_share = share
    slots, read = np.arange(1, 101), torch.rand(100, 4)
    for _ in range(2):  # at first it is not known what a row takes
        tap.keep(torch.from_numpy(slots), read, pass_seconds=100.0)
        assert np.flatnonzero(tap.states.known(slots)).tolist() == list(range(100 - mapped, 100))
        assert torch.equal(tap.states.read(slots[-mapped:]), read[-mapped:])


def test_what_was_held_is_mapped_within_the_same_share(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = SlowMap()
    monkeypatch.setattr(time, "thread_time", lambda: mapping.now)
    tap = Tap([0], mapping, SlotStates(200, 4, torch.float32))
    tap.most_share, tap.resting = 0.5, True
    slots = np.arange(1, 101)
    tap.keep(torch.from_numpy(slots), torch.rand(100, 4), pass_seconds=100.0)
    assert mapping.now == 0
    tap.catch_up(slots[:80])
    assert mapping.now == 50
    tap.catch_up(slots)
    assert mapping.now == 66, "none of the share is left"


def test_the_share_of_reading_is_that_of_the_last_passes() -> None:
    tap = Tap([0], torch.nn.Identity(), SlotStates(8, 4, torch.float32))
    slots, read = torch.arange(1, 3), torch.rand(2, 4)
    assert tap.reading_share == 0
    tap.keep(slots, read, pass_seconds=2.0, reading_seconds=1.0)
    assert tap.reading_share == 0.5
    for _ in range(100):
        tap.keep(slots, read, pass_seconds=2.0, reading_seconds=0.02)
    assert tap.reading_share == pytest.approx(0.01, rel=0.01)
    assert tap.take_seconds() >= 3.0, "drafters are charged for it"
