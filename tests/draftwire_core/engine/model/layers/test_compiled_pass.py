"""A pass without transformers' code around its layers computes what the model computes with it."""

import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.model.layers.compiled_pass import CompiledPass
from draftwire_core.engine.model.packed_batch import BatchBuilder
from tests.harness.engine.engines import packed
from tests.harness.engine.fused_models import fused_model
from tests.harness.engine.special_models import llama

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


@pytest.mark.parametrize("case", ["grouped heads", "two kinds of angles", "gated attention, delta nets"])
def test_logits_and_states_are_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(fused_model(case, torch.bfloat16))
    assert model.passes.compiled is not None
    slots = model.pool.take(9)
    builder = BatchBuilder()
    rows = [builder.add_row(token, token, int(slots[token]), wants_logits=token in (3, 8)) for token in range(9)]
    builder.add_lane(slots[:0], rows)
    batch = builder.build(model.group_size, model.device)
    found, with_states = model.forward(batch), model.forward_with_states(batch)
    monkeypatch.setattr(model.passes, "compiled", None)
    expected, states = model.forward_with_states(batch)
    assert found.shape == (2, model.vocab_size)
    assert torch.equal(found, expected) and torch.equal(with_states[0], expected)
    assert torch.equal(with_states[1], states)


def test_a_view_of_the_first_layers_has_a_pass_of_its_own() -> None:
    model = packed(llama(torch.bfloat16))
    view = model.first_layers(1)
    assert view.passes.compiled is not None and view.passes.compiled is not model.passes.compiled
    assert len(view.passes.compiled._layers) == 1


def test_models_that_do_not_run_compiled_have_none() -> None:
    assert CompiledPass.of(llama(torch.bfloat16)) is None
    assert packed(llama(torch.float32)).passes.compiled is None
