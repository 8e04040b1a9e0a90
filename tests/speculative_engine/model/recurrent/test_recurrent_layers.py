"""Models with recurrent layers: packed passes against transformers' own forwards, and law 1 bit by bit."""

from collections.abc import Iterator

import pytest
import torch

from speculative_engine.kernels.kernel_names import Kernels
from speculative_engine.kernels.library import available_kernels, kernels_in_use, use_kernels
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.cuda.step_buckets import StepBuckets
from speculative_engine.model.packed_model import ModelLoadError, PackedModel, UnsupportedModelError
from tests.harness.engine.engines import Rows, check_against_plain, packed, random_tokens, walk
from tests.harness.engine.recurrent_models import KINDS, RECURRENT_MODELS, check_idle, recurrent_model

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    before = kernels_in_use()
    use_kernels(request.param)
    yield request.param
    use_kernels(before)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def assert_same_bits(found: Rows, expected: Rows) -> None:
    shared = found.keys() & expected.keys()
    assert len(shared) >= len(found) / 4
    different = [len(prefix) for prefix in shared if not torch.equal(found[prefix], expected[prefix])]
    assert not different, f"{len(different)} of {len(shared)} rows differ, the shortest after {min(different)} tokens"


@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_packed_passes_say_what_plain_forwards_say(name: str) -> None:
    model = recurrent_model(name)
    engine_model = packed(model)
    texts = [random_tokens(count, seed=count) for count in (33, 7, 50, 20)]
    rows = walk(engine_model, texts, [15, 1, 40, 5], seed=1)
    assert len(rows) > sum(map(len, texts)) // 2
    assert check_against_plain(model, rows) < 1e-3
    check_idle(engine_model)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_the_self_test_accepts_them(name: str, dtype: torch.dtype) -> None:
    model = packed(recurrent_model(name, dtype))
    assert run_self_test(model).bit_exact
    check_idle(model)


def rows_of(model: PackedModel) -> list[Rows]:
    """Rows token by token, and the same in chunks, batches and trees."""
    texts = [random_tokens(136, seed=1), random_tokens(290, seed=2), random_tokens(25, seed=3)]
    prompts = [118, 270, 5]
    return [
        walk(model, texts, prompts, trees=False, chunk=1, together=False),
        walk(model, texts, prompts, seed=1, chunk=64),
        walk(model, texts, prompts, seed=2, chunk=300, together=False),
        walk(model, texts, [126, 277, 15], seed=3, chunk=13),  # resumed: earlier output is part of the prompt
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_rows_have_the_same_bits_however_their_states_came_about(name: str, dtype: torch.dtype) -> None:
    model = packed(recurrent_model(name, dtype))
    one_by_one, *others = rows_of(model)
    for rows in others:
        assert_same_bits(rows, one_by_one)
    check_idle(model)


@pytest.mark.parametrize("kernels", ["torch", "baseline"], indirect=True)
@pytest.mark.parametrize("name", KINDS)
def test_so_they_have_with_other_kernels(name: str, kernels: Kernels) -> None:
    if kernels not in available_kernels():
        pytest.skip(f"{kernels} cannot run here")
    one_by_one, beside, *_ = rows_of(packed(recurrent_model(name)))
    assert_same_bits(beside, one_by_one)


@pytest.mark.parametrize("name", KINDS)
def test_threads_change_no_bit(name: str) -> None:
    model = packed(recurrent_model(name, torch.bfloat16))
    torch.set_num_threads(1)
    one_by_one, *_ = rows_of(model)
    torch.set_num_threads(3)
    for rows in rows_of(model):
        assert_same_bits(rows, one_by_one)


@pytest.mark.parametrize("name", KINDS)
def test_blocks_of_8_and_4_bits(name: str) -> None:
    for weights in ("q8_0", "q4_0"):
        model = PackedModel(recurrent_model(name, torch.bfloat16), 4000, weights=weights)
        one_by_one, beside, *_ = rows_of(model)
        assert_same_bits(beside, one_by_one)


def test_what_they_do_not_support_is_said() -> None:
    model = packed(recurrent_model("Lfm2"))
    with pytest.raises(ModelLoadError, match="some of its layers are recurrent"):
        model.first_layers(1)
    with pytest.raises(UnsupportedModelError, match="do not run in steps of fixed sizes"):
        packed(recurrent_model("Lfm2"), buckets=StepBuckets.within(100))


@pytest.mark.parametrize("name", KINDS)
def test_memory_is_a_state_a_sequence_and_inputs_a_node(name: str) -> None:
    model = packed(recurrent_model(name))
    states = model.cache.states
    assert states is not None and states.bytes == 0
    walk(model, [random_tokens(40)], [20])
    # The state of a gated linear recurrence is a number a channel, of RWKV three, and a short convolution has none.
    assert states.input_bytes * 4 < states.state_bytes or name in ("Lfm2", "RecurrentGemma", "Rwkv")
    held, inputs = states.bytes, states._input_room
    assert held == states._state_room * states.state_bytes + inputs * states.input_bytes
