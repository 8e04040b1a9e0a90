"""Models with recurrent layers: packed passes against transformers' own forwards, and law 1 bit by bit."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import pytest
import torch

from draftwire_core.engine.device.choices import Kernels, Weights
from draftwire_core.engine.kernels.library import available_kernels, kernels_in_use, use_kernels
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel, UnsupportedModelError
from tests.harness.engine.engines import Rows, check_against_plain, packed, random_tokens, walk
from tests.harness.engine.pretended_gpu import pretended_gpu, to_gpu
from tests.harness.engine.recurrent_models import KINDS, RECURRENT_MODELS, check_idle, recurrent_model

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    before = kernels_in_use()
    if request.param not in available_kernels():
        pytest.skip(f"{request.param} cannot run here")
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


def check_says(name: str, lengths: tuple[int, ...], prompts: list[int]) -> None:
    model = recurrent_model(name)
    engine_model = packed(model)
    texts = [random_tokens(count, seed=count) for count in lengths]
    rows = walk(engine_model, texts, prompts, seed=1)
    assert len(rows) > sum(lengths) // 2
    assert check_against_plain(model, rows) < 1e-3
    check_idle(engine_model)


@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_packed_passes_say_what_plain_forwards_say(name: str) -> None:
    check_says(name, (13, 6), [7, 1])


def check_self_test(name: str, dtype: torch.dtype) -> None:
    model = packed(recurrent_model(name, dtype))
    assert run_self_test(model).bit_exact
    check_idle(model)


@pytest.mark.parametrize("name", KINDS[::2])
def test_the_self_test_accepts_them(name: str) -> None:
    check_self_test(name, torch.bfloat16)


class Walks(NamedTuple):
    """Walks that compute the same rows from states that came about in other ways."""

    lengths: tuple[int, ...]
    """Of the texts."""
    prompts: list[int]
    resumed: list[int]
    """Prompts of sequences that go on with what they generated earlier."""
    chunks: tuple[int, int, int]
    """Of prompts beside others, alone and resumed."""

    def rows(self, model: PackedModel) -> Iterator[Rows]:
        """Rows token by token, and the same in chunks, batches and trees."""
        texts = [random_tokens(length, seed=seed) for seed, length in enumerate(self.lengths, start=1)]
        beside, alone, resumed = self.chunks
        yield walk(model, texts, self.prompts, trees=False, chunk=1, together=False)
        yield walk(model, texts, self.prompts, seed=1, chunk=beside)
        yield walk(model, texts, self.prompts, seed=2, chunk=alone, together=False)
        yield walk(model, texts, self.resumed, seed=3, chunk=resumed)


SHORT = Walks((9, 21, 6), [5, 16, 2], [7, 18, 4], (7, 30, 4))
LONG = Walks((136, 290, 25), [118, 270, 5], [126, 277, 15], (64, 300, 13))


def check_states(name: str, dtype: torch.dtype, walks: Walks) -> None:
    model = packed(recurrent_model(name, dtype))
    one_by_one, *others = walks.rows(model)
    for rows in others:
        assert_same_bits(rows, one_by_one)
    check_idle(model)


@pytest.mark.parametrize("name", KINDS)
def test_rows_have_the_same_bits_however_their_states_came_about(name: str) -> None:
    check_states(name, torch.bfloat16, SHORT)


def check_beside(model: PackedModel, walks: Walks) -> None:
    """Rows have the same bits beside others as one by one."""
    one_by_one, beside = islice(walks.rows(model), 2)
    assert_same_bits(beside, one_by_one)


@pytest.mark.parametrize("kernels", ["torch", "baseline"], indirect=True)
def test_so_they_have_with_other_kernels(kernels: Kernels) -> None:
    check_beside(packed(recurrent_model("Qwen3_5")), SHORT)


def check_threads(name: str, walks: Walks, count: int) -> None:
    """Rows have the same bits with three threads. count: of walks with them."""
    model = packed(recurrent_model(name, torch.bfloat16))
    torch.set_num_threads(1)
    one_by_one = next(walks.rows(model))
    torch.set_num_threads(3)
    for rows in islice(walks.rows(model), count):
        assert_same_bits(rows, one_by_one)


@pytest.mark.parametrize("name", ["Qwen3_5", "Mamba"])
def test_threads_change_no_bit(name: str) -> None:
    check_threads(name, SHORT, 2)


@pytest.mark.parametrize(("name", "weights"), [("Qwen3_5", "q4_0"), ("Mamba2", "q8_0")])
def test_blocks_of_8_and_4_bits(name: str, weights: Weights) -> None:
    check_beside(PackedModel(recurrent_model(name, torch.bfloat16), 4000, weights=weights), SHORT)


def test_what_they_do_not_support_is_said() -> None:
    model = packed(recurrent_model("Lfm2"))
    with pytest.raises(ModelLoadError, match="some of its layers are recurrent"):
        model.first_layers(1)


def test_on_a_gpu_they_are_refused() -> None:
    pytest.importorskip("triton")
    model = recurrent_model("Mamba", torch.float16)
    del model.config.num_attention_heads  # which only our sizes give it
    with pretended_gpu():
        to_gpu(model)
        with pytest.raises(UnsupportedModelError, match="the recurrent layers of MambaForCausalLM run on CPUs only"):
            PackedModel(model, 400)


@pytest.mark.parametrize("name", KINDS)
def test_memory_is_a_state_a_sequence_and_inputs_a_node(name: str) -> None:
    model = packed(recurrent_model(name))
    states = model.cache.states
    assert states is not None and states.bytes == 0
    walk(model, [random_tokens(12)], [6])
    # The state of a gated linear recurrence is a number a channel, of RWKV three, and a short convolution has none.
    assert states.input_bytes * 4 < states.state_bytes or name in ("Lfm2", "RecurrentGemma", "Rwkv")
    held, inputs = states.bytes, states._input_room
    assert held == states._state_room * states.state_bytes + inputs * states.input_bytes


@pytest.mark.slow
class TestAll:
    """All models in both types, with all kernels, and contexts of several blocks of rows."""

    @pytest.mark.parametrize("name", RECURRENT_MODELS)
    def test_packed_passes_say_what_plain_forwards_say(self, name: str) -> None:
        check_says(name, (33, 7, 50, 20), [15, 1, 40, 5])

    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    @pytest.mark.parametrize("name", RECURRENT_MODELS)
    def test_the_self_test_accepts_them(self, name: str, dtype: torch.dtype) -> None:
        check_self_test(name, dtype)

    @pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
    @pytest.mark.parametrize("name", RECURRENT_MODELS)
    def test_rows_have_the_same_bits_however_their_states_came_about(self, name: str, dtype: torch.dtype) -> None:
        check_states(name, dtype, LONG)

    @pytest.mark.parametrize("kernels", ["torch", "baseline"], indirect=True)
    @pytest.mark.parametrize("name", KINDS)
    def test_so_they_have_with_other_kernels(self, name: str, kernels: Kernels) -> None:
        check_beside(packed(recurrent_model(name)), LONG)

    @pytest.mark.parametrize("name", KINDS)
    def test_threads_change_no_bit(self, name: str) -> None:
        check_threads(name, LONG, 4)

    @pytest.mark.parametrize("name", KINDS)
    def test_blocks_of_8_and_4_bits(self, name: str) -> None:
        for weights in ("q8_0", "q4_0"):
            check_beside(PackedModel(recurrent_model(name, torch.bfloat16), 4000, weights=weights), LONG)
