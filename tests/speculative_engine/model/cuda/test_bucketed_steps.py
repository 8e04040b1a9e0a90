"""Steps of fixed sizes, run on a CPU like on a GPU, except that captured calls are repeated instead of CUDA graphs."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.cuda.bucketed_steps import BucketedSteps
from speculative_engine.model.cuda.step_buckets import StepBuckets
from speculative_engine.model.layers import cpu_layers
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import PackedModel
from tests.harness.engine.engines import (
    ARCHITECTURES,
    check_against_plain,
    error,
    packed,
    random_tokens,
    tiny_model,
    walk,
)

KINDS = ["GPT2", "Gemma2", "GptOss", "Llama"]
"""Architectures with learned positions, windows and softcap, sinks, and none of these."""
BUCKETS = StepBuckets(rows=(1, 2, 4, 8, 16), keys=(64, 256))
"""Small enough that some of the tests' steps exceed them."""


def check_says(name: str, lengths: tuple[int, ...], prompts: list[int]) -> None:
    model = tiny_model(name)
    bucketed = packed(model, buckets=BUCKETS)
    texts = [random_tokens(count, seed=count) for count in lengths]
    rows = walk(bucketed, texts, prompts, seed=1)
    assert len(rows) > sum(lengths) // 2
    assert check_against_plain(model, rows) < 1e-4
    assert bucketed.pool.used == 0


@pytest.mark.parametrize("name", KINDS)
def test_bucketed_passes_say_what_plain_forwards_say(name: str) -> None:
    check_says(name, (33, 7, 18), [15, 1, 12])


class InnerSizes(TorchDispatchMode):
    """Records the inner sizes of batched matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.ops.aten.bmm.default:
            self.found.append(args[0].shape[2])
        return call(*args, **(kwargs or {}))


def check_products(name: str) -> None:
    """On GPUs torch compiles outer products at run time, which needs a C compiler."""
    # Without row-exact layers, which on CPUs take the place of transformers' rotary embeddings, too.
    model = PackedModel(tiny_model(name), 200, row_exact=False, buckets=BUCKETS)
    sizes = InnerSizes()
    for rows in (1, 3):
        builder = BatchBuilder()
        slots = model.pool.take(rows)
        builder.add_lane(slots[:0], [builder.add_row(9 + i, i, int(slot), True) for i, slot in enumerate(slots)])
        with sizes:
            model.forward(builder.build(model.group_size, model.device))
        model.pool.give_back(slots)
    assert sizes.found and 1 not in sizes.found


@pytest.mark.parametrize("name", KINDS)
def test_no_product_is_an_outer_product(name: str) -> None:
    check_products(name)


def test_captured_steps_say_what_others_say() -> None:
    model = tiny_model("Qwen3")
    eager, captured = packed(model, buckets=BUCKETS), packed(model, buckets=BUCKETS)
    captured.capture_graphs()
    assert isinstance(captured.steps, BucketedSteps) and captured.steps.captured == 10
    texts = [random_tokens(count, seed=count) for count in (33, 7, 50)]
    expected = walk(eager, texts, [15, 1, 40], seed=2)
    found = walk(captured, texts, [15, 1, 40], seed=2)
    assert found.keys() == expected.keys() and all(error(found[row], expected[row]) < 1e-4 for row in expected)


def test_hidden_states_are_those_of_the_wanted_rows() -> None:
    model = tiny_model("Llama")
    plain, bucketed = packed(model), packed(model, buckets=BUCKETS)
    for capture in (False, True):
        if capture:
            bucketed.capture_graphs()
        found = []
        for each in (plain, bucketed):
            builder = BatchBuilder()
            slots = each.pool.take(5)
            builder.add_lane(slots[:0], [builder.add_row(9 + i, i, int(slot), i > 2) for i, slot in enumerate(slots)])
            found.append(each.forward_with_states(builder.build(each.group_size, each.device)))
            each.pool.give_back(slots)
        (logits, states), (same_logits, same_states) = found
        assert same_logits.shape == (2, plain.vocab_size) and same_states.shape == (2, plain.hidden_size)
        assert error(same_logits, logits) < 1e-4 and error(same_states, states) < 1e-4


def test_a_view_of_the_first_layers_has_steps_of_its_own() -> None:
    model = tiny_model("Llama")
    plain, bucketed = packed(model), packed(model, buckets=BUCKETS)
    bucketed.capture_graphs()
    text = random_tokens(20, seed=1)
    found = walk(bucketed.first_layers(2), [text], [12], seed=1)
    for prefix, row in walk(plain.first_layers(2), [text], [12], seed=1).items():
        assert error(found[prefix], row) < 1e-4


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_a_model_that_waits_for_the_device_goes_on_without_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_layers, "replace_experts", lambda *_: None)  # GPUs have transformers' own
    bucketed = packed(tiny_model(name, experts_implementation="eager"), buckets=BUCKETS)
    bucketed.capture_graphs()
    assert isinstance(bucketed.steps, BucketedSteps) and bucketed.captured == 0
    assert bucketed.steps.unavailable is not None and bucketed.steps.unavailable.endswith(" waits for the device")
    assert bucketed.graphs == bucketed.steps.unavailable
    assert run_self_test(bucketed).error < 1e-3


def test_slots_of_another_cache_are_not_looked_up() -> None:
    """The self-test's cache has more slots than this one; an index out of bounds would end the process on a GPU."""
    bucketed = packed(tiny_model("Llama"), slots=40, buckets=BUCKETS)
    run_self_test(bucketed)
    text = random_tokens(20, seed=1)
    rows = walk(bucketed, [text], [12], seed=1)
    assert check_against_plain(tiny_model("Llama"), rows) < 1e-4


def test_nothing_keeps_a_model_that_is_not_used_any_more() -> None:
    """Its weights, keys and graphs are gigabytes on a GPU, which the model after it needs."""
    bucketed = packed(tiny_model("Llama"), buckets=BUCKETS)
    view = bucketed.first_layers(2)
    for each in (bucketed, view):
        each.capture_graphs()
        walk(each, [random_tokens(20, seed=1)], [12], seed=1)
    gone = [weakref.ref(each) for each in (bucketed.model, bucketed.cache, bucketed.steps, view.model, view.steps)]
    gc.disable()
    try:
        del bucketed, view, each
        assert not [reference for reference in gone if reference() is not None]
    finally:
        gc.enable()


@pytest.mark.slow
class TestAll:
    """All architectures."""

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_bucketed_passes_say_what_plain_forwards_say(self, name: str) -> None:
        check_says(name, (33, 7, 50, 20), [15, 1, 40, 5])

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_no_product_is_an_outer_product(self, name: str) -> None:
        check_products(name)
