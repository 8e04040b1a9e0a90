"""Steps whose sizes are numbers of rows alone, in Triton's interpreter."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from draftwire_core.engine.model.cuda.slots.slot_steps import SlotSteps
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import StepDraws
from tests.harness.engine.engines import random_tokens, tiny_model
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.kernels.untried_kernels import untried_kernels

prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


def chain(model: PackedModel, count: int, wanted: int) -> PackedBatch:
    """A prompt of so many tokens, with the logits of the last ones."""
    builder = BatchBuilder()
    slots = model.pool.take(count)
    tokens = random_tokens(count, seed=count)
    rows = [
        builder.add_row(token, index, int(slot), count - index <= wanted)
        for index, (token, slot) in enumerate(zip(tokens, slots, strict=True))
    ]
    builder.add_lane(np.empty(0, dtype=np.int64), rows)
    model.pool.give_back(slots)
    return builder.build(model.group_size, model.device)


@pytest.fixture(scope="module")
def model() -> PackedModel:
    with untried_kernels():
        return PackedModel(tiny_model("Llama", num_hidden_layers=1), 90, kernels=True)


def test_steps_beyond_all_sizes(model: PackedModel) -> None:
    """They run in new tensors, with the same bits."""
    assert isinstance(model.steps, SlotSteps)
    batch = chain(model, 6, 3)
    expected = model.forward(batch)
    held, model.steps = model.steps, SlotSteps(model.steps._run, 90, model.device, rows=(1, 4))
    try:
        assert torch.equal(model.forward(batch), expected)
    finally:
        model.steps = held


def test_logits_and_states_are_those_of_the_wanted_rows(model: PackedModel) -> None:
    batch = chain(model, 4, 2)
    logits, states = model.forward_with_states(batch)
    assert logits.shape == (2, model.vocab_size) and states.shape == (2, model.hidden_size)
    assert torch.equal(model.model.get_output_embeddings()(states), logits)


def test_tokens_are_drawn_in_the_pass(model: PackedModel) -> None:
    batch = chain(model, 6, 3)
    sampling = SamplingBatch.build([SamplingParams(temperature=1.0, seed=seed) for seed in range(3)], [6, 7, 8])
    model.sampler = KernelSampler()
    try:
        rows, drawn = model.forward_and_draw(batch, StepDraws.of_roots(sampling))
    finally:
        model.sampler = None
    assert drawn.get()[0][:3].tolist() == sample(rows.logits, sampling).token_ids.tolist()


def test_a_larger_cache_has_steps_of_its_own(model: PackedModel) -> None:
    with untried_kernels():
        other = PackedModel(tiny_model("Llama", num_hidden_layers=1), 20, kernels=True)
    other.resize(90)
    batch = chain(model, 4, 1)
    assert torch.equal(other.forward(batch), model.forward(batch))
    assert other.cache.capacity == 90


def test_models_that_kernels_do_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwire_core.engine.model.backends.choose_backend.missing", lambda *_: "no kernels here")
    assert PackedModel(tiny_model("Llama"), 20).layer_kernels == "no kernels here"
    with pytest.raises(UnsupportedModelError, match="no kernels here"):
        PackedModel(tiny_model("Llama"), 20, kernels=True)
