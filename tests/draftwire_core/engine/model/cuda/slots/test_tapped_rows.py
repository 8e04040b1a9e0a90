"""Taps of passes on Triton kernels, in Triton's interpreter: what they read, and that they change no bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from draftwire_core.engine.model.cuda.slots.slot_steps import SlotSteps
from draftwire_core.engine.model.cuda.slots.tapped_rows import TappedRows
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import random_tokens, tiny_model
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.kernels.untried_kernels import untried_kernels

prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

TOKENS = random_tokens(7, seed=5)
LAYERS = 2


def on_kernels(library: nn.Module) -> PackedModel:
    with untried_kernels():
        return PackedModel(copy.deepcopy(library), 60, kernels=True)


def tap_of(model: PackedModel, layers: Sequence[int]) -> Tap:
    width = len(layers) * model.hidden_size
    return Tap(layers, nn.Identity(), SlotStates(model.pool.capacity, width, model.dtype))


def batch_of(model: PackedModel, context: np.ndarray, tokens: Sequence[int], taps: Sequence[Tap]) -> PackedBatch:
    builder, start = BatchBuilder(), len(context)
    slots = model.pool.take(len(tokens))
    rows = [builder.add_row(token, start + at, int(slots[at]), wants_logits=True) for at, token in enumerate(tokens)]
    builder.add_lane(context, rows)
    batch = builder.build(model.group_size, model.device)
    batch.taps = taps
    return batch


def computed(model: PackedModel, *taps: Tap) -> tuple[torch.Tensor, np.ndarray]:
    """Computes the tokens in two parts; returns the logits of all, and their slots."""
    first = batch_of(model, np.empty(0, dtype=np.int64), TOKENS[:4], taps)
    logits = model.forward(first)
    second = batch_of(model, first.numbers[2], TOKENS[4:], taps)
    return torch.cat([logits, model.forward(second)]), np.concatenate([first.numbers[2], second.numbers[2]])


def states_of(library: nn.Module) -> list[torch.Tensor]:
    """What enters each of the library's layers, and what leaves the last one, [tokens, hidden] each."""
    found: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, kwargs: found.append((args[0] if args else kwargs["hidden_states"])[0].clone()),
            with_kwargs=True,
        )
        for layer in library.model.layers
    ]
    last = library.model.layers[-1]
    hooks.append(last.register_forward_hook(lambda _, __, out: found.append(out[0] if isinstance(out, tuple) else out)))
    with torch.inference_mode():
        library(torch.tensor([TOKENS]))
    for hook in hooks:
        hook.remove()
    found[-1] = found[-1].reshape(len(TOKENS), -1)
    return found


@pytest.mark.parametrize("name", ["Llama", "Phi3"])
def test_they_read_what_enters_the_layers_and_change_no_bit(name: str) -> None:
    """Of a model whose layers are kernels, and of one whose layers are those of transformers."""
    library = tiny_model(name, num_hidden_layers=LAYERS)
    model = on_kernels(library)
    assert model.can_be_tapped and model.layer_kernels == ("yes" if name == "Llama" else "attention")
    model.capture_graphs()
    alone, _ = computed(model)
    tap, other = tap_of(model, (0, 1, 2)), tap_of(model, (2,))
    tapped, slots = computed(model, tap, other)
    assert torch.equal(tapped, alone)
    expected = torch.cat(states_of(library), dim=1)
    found = tap.states.read(slots)
    assert ((found - expected).abs().max() / expected.std()).item() < 1e-4
    assert torch.equal(other.states.read(slots), found[:, -model.hidden_size :])
    later = tap_of(model, (1,))
    again, slots = computed(model, later)  # by the same graphs
    assert torch.equal(again, alone)
    assert torch.equal(later.states.read(slots), found[:, model.hidden_size : 2 * model.hidden_size])
    assert tap.take_seconds() > 0


def test_states_are_rounded_to_the_models_dtype() -> None:
    library = tiny_model("Llama", torch.bfloat16, num_hidden_layers=1)
    model = on_kernels(library)
    tap = tap_of(model, (0,))
    _, slots = computed(model, tap)
    assert torch.equal(tap.states.read(slots), library.model.embed_tokens(torch.tensor(TOKENS)))


@pytest.mark.parametrize("least", ["rows", "planes"])
def test_a_pass_beyond_the_captured_ones_has_memory_of_its_own(least: str) -> None:
    """For more rows, or for more layers."""
    library = tiny_model("Llama", num_hidden_layers=1)
    model, whole = on_kernels(library), on_kernels(library)
    steps = model.steps
    assert isinstance(steps, SlotSteps)
    planes = 1 if least == "planes" else 3
    tapped = TappedRows(1, planes, 2, model.hidden_size, model.dtype, model.device)
    model.steps = SlotSteps(steps._run, 60, model.device, rows=(1, 2), tapped=tapped)
    taps = [tap_of(each, (0, 1)) for each in (model, whole)]
    (few, slots), (found, places) = computed(model, taps[0]), computed(whole, taps[1])
    assert torch.equal(few, found)
    assert torch.equal(taps[0].states.read(slots), taps[1].states.read(places))
    assert torch.equal(computed(model)[0], found), "without taps, behind a pass with them"


def test_what_rests_is_held_and_mapped_later() -> None:
    model = on_kernels(tiny_model("Llama", num_hidden_layers=1))
    tap, active = tap_of(model, (1,)), tap_of(model, (1,))
    tap.resting = True
    _, slots = computed(model, tap, active)
    assert not tap.states.known(slots).any()
    tap.catch_up()
    assert torch.equal(tap.states.read(slots), active.states.read(slots))
