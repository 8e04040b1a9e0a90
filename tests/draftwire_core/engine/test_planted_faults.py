"""Faults planted in the engine: the comparisons that the other tests use must catch each of them."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.kv import prefix_cache
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT, SlotList, SlotPool
from draftwire_core.engine.kv.prefix_cache import PrefixCache
from draftwire_core.engine.kv.recurrent_states import SequenceState
from draftwire_core.engine.kv.shared_prefix import SharedPrefix
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.attention import packed_attention
from draftwire_core.engine.model.layers import cpu_layers
from draftwire_core.engine.model.linear.linear_weight import MakeLinear
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.token_tree import Node
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    check_against_plain,
    engine_of,
    generate,
    packed,
    plain_logits,
    random_tokens,
    specs_of,
    tiny_model,
    walk,
)
from tests.harness.engine.expert_models import expert_model

Patch = pytest.MonkeyPatch


def no_rollback(patch: Patch) -> None:
    """Keeps the slots of the first verified nodes, accepted or not."""

    def commit(job: VerificationJob, accepted: list[Node]) -> None:
        job.sequence.slots.extend(job.slots[: len(job.chain) + len(accepted)])

    def rollback(job: VerificationJob, accepted: list[Node], pool: SlotPool) -> None:
        pool.give_back(job.slots[len(job.chain) + len(accepted) :])

    patch.setattr(VerificationJob, "commit", commit)
    patch.setattr(VerificationJob, "rollback", rollback)


def causal_mask(patch: Patch) -> None:
    """Lets a node see everything laid out before it, including its siblings."""
    add_lane = BatchBuilder.add_lane

    def add(self: BatchBuilder, context: np.ndarray, rows: list[int], *args: Any, **kwargs: Any) -> None:
        seen = list(range(rows[0], rows[-1] + 1))
        add_lane(self, context, seen[len(seen) - len(rows) :], *args, **kwargs)

    patch.setattr(BatchBuilder, "add_lane", add)


def slot_handed_out_twice(patch: Patch) -> None:
    take = SlotPool.take_list

    def twice(self: SlotPool, count: int, after: int = PADDING_SLOT) -> list[int]:
        slots = take(self, count, after)
        slots[-1] = slots[0]
        return slots

    patch.setattr(SlotPool, "take_list", twice)
    patch.setattr(SlotPool, "give_back", lambda self, slots: None)


def slots_of_the_token_before(patch: Patch) -> None:
    commit = VerificationJob.commit

    def shifted(job: VerificationJob, accepted: list[Node]) -> None:
        before = len(job.sequence.slots)
        commit(job, accepted)
        kept = job.sequence.slots.array()
        kept[before:] = kept[max(0, before - 1) : len(kept) - 1 + (before == 0)].copy()

    patch.setattr(VerificationJob, "commit", shifted)


def wrong_positions(patch: Patch) -> None:
    """Places a tree's rows as if they were a chain."""
    add_row = BatchBuilder.add_row

    def add(self: BatchBuilder, token: int, position: int, slot: int, wants_logits: bool) -> int:
        return add_row(self, token, position + len(self) % 2, slot, wants_logits)

    patch.setattr(BatchBuilder, "add_row", add)


MASKS_AND_SLOTS = [no_rollback, causal_mask, slot_handed_out_twice, slots_of_the_token_before, wrong_positions]


def worst_error(model_name: str, dtype: torch.dtype) -> float:
    model = tiny_model(model_name, dtype)
    rows = walk(packed(model, 60_000), [random_tokens(40, seed=1), random_tokens(25, seed=2)], [12, 4], seed=2)
    return check_against_plain(model, rows)


@cache
def faultless_error(model_name: str, dtype: torch.dtype) -> float:
    """Returns worst_error, for calls before a fault is planted."""
    return worst_error(model_name, dtype)


def check_against_plain_forwards(plant: Callable[[Patch], None], dtype: torch.dtype, patch: Patch) -> None:
    assert faultless_error("Llama", dtype) < 0.25
    plant(patch)
    assert not worst_error("Llama", dtype) < 0.5


def check_self_test(name: str, plant: Callable[[Patch], None], dtype: torch.dtype, patch: Patch) -> None:
    model = packed(tiny_model(name, dtype))
    run_self_test(model)
    plant(patch)
    with pytest.raises(UnsupportedModelError):
        run_self_test(model)


@pytest.mark.parametrize("plant", MASKS_AND_SLOTS)
def test_masks_and_slots_show_against_plain_forwards(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    check_against_plain_forwards(plant, torch.float32, monkeypatch)


@pytest.mark.parametrize("plant", MASKS_AND_SLOTS)
def test_the_self_test_refuses_them(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    check_self_test("Llama", plant, torch.float32, monkeypatch)


OTHER_MODELS = [
    ("GPT2", torch.float32, wrong_positions),  # learned positions
    ("Mistral", torch.float32, causal_mask),  # a window
    ("Llama", torch.bfloat16, no_rollback),  # coarser numbers, and a wider tolerance
]


@pytest.mark.parametrize(("name", "dtype", "plant"), OTHER_MODELS)
def test_the_self_test_refuses_one_of_each_kind_of_model(
    name: str, dtype: torch.dtype, plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    check_self_test(name, plant, dtype, monkeypatch)


@pytest.mark.slow
class TestMasksAndSlotsOfEveryModel:
    @pytest.mark.parametrize("plant", MASKS_AND_SLOTS)
    def test_they_show_against_plain_forwards_in_bfloat16(
        self, plant: Callable[[Patch], None], monkeypatch: Patch
    ) -> None:
        check_against_plain_forwards(plant, torch.bfloat16, monkeypatch)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
    @pytest.mark.parametrize("plant", MASKS_AND_SLOTS)
    @pytest.mark.parametrize("name", ["Llama", "GPT2", "Mistral"])
    def test_the_self_test_refuses_them(
        self, name: str, plant: Callable[[Patch], None], dtype: torch.dtype, monkeypatch: Patch
    ) -> None:
        check_self_test(name, plant, dtype, monkeypatch)


def test_a_window_that_is_ignored_shows(monkeypatch: Patch) -> None:
    monkeypatch.setattr(packed_attention.compiled_attention, "fits", lambda keys, values: False)
    attend = packed_attention.LaneGroup.mask
    monkeypatch.setattr(packed_attention.LaneGroup, "mask", lambda self, window, *rest: attend(self, None, *rest))
    assert worst_error("Mistral", torch.float32) > 0.1


def outputs_of(model: PackedModel, drafter: ScriptedDrafter | None = None) -> dict[int, list[int]]:
    samplings = [GREEDY, SamplingParams(temperature=1.0, seed=5), SamplingParams(temperature=1.2, seed=6)]
    prompts = [random_tokens(count, seed=count) for count in (20, 9, 30)]
    return generate(engine_of(model), specs_of(prompts, 16, samplings), drafter).tokens


@pytest.mark.parametrize("plant", [no_rollback, causal_mask, slots_of_the_token_before])
def test_they_show_in_tokens(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    model = packed(tiny_model("Llama"), 60_000)
    expected = outputs_of(model)
    assert outputs_of(model, ScriptedDrafter(expected)) == expected
    plant(monkeypatch)
    assert outputs_of(model, ScriptedDrafter(expected)) != expected


def test_noise_of_a_wrong_position_shows(monkeypatch: Patch) -> None:
    model = packed(tiny_model("Llama"))
    expected = outputs_of(model)
    lay_out = VerificationJob.lay_out

    def late(self: VerificationJob, builder: BatchBuilder, pool: SlotPool) -> None:
        lay_out(self, builder, pool)
        self.sampled_positions[1:] = [position - 1 for position in self.sampled_positions[1:]]

    monkeypatch.setattr(VerificationJob, "lay_out", late)
    assert outputs_of(model) == expected
    assert outputs_of(model, ScriptedDrafter(expected)) != expected


def test_noise_is_that_of_the_absolute_position() -> None:
    """Drawn token by token from transformers' logits: no other test would notice a shift of all positions."""
    model = tiny_model("Llama")
    params = SamplingParams(temperature=1.0, seed=77)
    prompt = random_tokens(12, seed=1)
    found = generate(engine_of(packed(model)), specs_of([prompt], 12, params)).tokens[0]
    text = list(prompt)
    for _ in range(12):
        logits = plain_logits(model, text)[-1:]
        text.append(int(sample(logits, SamplingBatch.build([params], [len(text)])).token_ids))
    assert found == text[len(prompt) :]


# ---- the prefix cache ------------------------------------------------------------------------------------------------


def another_ones_tokens(patch: Patch) -> None:
    """Extends a match beyond the point where the texts differ."""
    patch.setattr(prefix_cache, "common_length", lambda first, second: min(len(first), len(second)))


def read_slots_evicted(patch: Patch) -> None:
    """Evicts prefixes that a sequence is reading."""

    def evict(self: PrefixCache, count: int) -> np.ndarray:
        stretch = self._root
        while len(stretch.slots) < count:
            stretch = next(iter(stretch.children.values()))
        self.idle -= count
        return stretch.slots[:count]

    patch.setattr(PrefixCache, "evict", evict)


def turns_of(model: PackedModel) -> dict[int, list[int]]:
    """Returns outputs of requests with a common prefix, with few slots."""
    system = random_tokens(40, seed=1)
    prompts = [[*system, *random_tokens(5, seed=2 + number)] for number in range(4)]
    engine = engine_of(model, max_tree_nodes=8)
    return {**generate(engine, specs_of(prompts[:2], 16)).tokens, **generate(engine, specs_of(prompts, 16)).tokens}


def test_another_ones_tokens_show(monkeypatch: Patch) -> None:
    library = tiny_model("Llama")
    expected = turns_of(packed(library, 110))
    assert turns_of(packed(library, 4000)) == expected
    another_ones_tokens(monkeypatch)
    assert turns_of(packed(library, 110)) != expected


def test_slots_that_are_read_and_evicted_show(monkeypatch: Patch) -> None:
    read_slots_evicted(monkeypatch)
    with pytest.raises(ValueError, match="a returned KV slot is already free"):
        turns_of(packed(tiny_model("Llama"), 110))


def test_shared_slots_that_are_given_back_twice_show(monkeypatch: Patch) -> None:
    give_up = SharedPrefix.give_up

    def give_all(self: SharedPrefix, slots: SlotList, state: SequenceState) -> np.ndarray:
        everything = slots.array().copy()
        give_up(self, slots, state)
        return everything

    monkeypatch.setattr(SharedPrefix, "give_up", give_all)
    with pytest.raises(ValueError, match="a returned KV slot is already free"):
        turns_of(packed(tiny_model("Llama"), 110))


# ---- bits ------------------------------------------------------------------------------------------------------------


def rows_differ(model: PackedModel, length: int, prompt: int) -> int:
    texts = [random_tokens(length, seed=1)]
    alone = walk(model, texts, [prompt], trees=False, chunk=400)
    beside = walk(model, texts, [prompt], seed=3, chunk=333)
    return sum(not torch.equal(beside[prefix], alone[prefix]) for prefix in beside.keys() & alone.keys())


def test_torch_sum_over_key_blocks_shows(monkeypatch: Patch) -> None:
    monkeypatch.setattr(packed_attention.compiled_attention, "fits", lambda keys, values: False)
    model = packed(tiny_model("Llama", num_hidden_layers=1))
    assert rows_differ(model, 1150, 1100) == 0
    monkeypatch.setattr(packed_attention, "_sum_blocks", lambda parts: parts.sum(dim=2))
    assert rows_differ(model, 1150, 1100) > 0


def test_functions_of_torch_show(monkeypatch: Patch) -> None:
    """On CPUs whose functions need no vectors this fault is invisible."""
    assert rows_differ(packed(expert_model("Laguna")), 60, 20) == 0
    monkeypatch.setattr(cpu_layers, "use_row_exact_functions", lambda model: None)
    if not rows_differ(packed(expert_model("Laguna")), 60, 20):
        pytest.skip("this CPU needs no functions of ours")


@pytest.mark.parametrize("forgotten", ["RowExactLinear", "RowExactActivation"])
def test_layers_of_the_library_show(forgotten: str, monkeypatch: Patch) -> None:
    """On CPUs whose plain kernels are row-exact this fault is invisible."""
    sizes = {"hidden_size": 72, "intermediate_size": 1301, "num_attention_heads": 3, "num_key_value_heads": 3}
    assert rows_differ(packed(tiny_model("Llama", **sizes)), 60, 20) == 0
    make = cpu_layers.make_row_exact

    def make_others(model: torch.nn.Module, make_linear: MakeLinear) -> None:
        before = dict(model.named_modules())
        make(model, make_linear)
        for name, module in list(model.named_modules()):
            if type(module).__name__ == forgotten:
                model.set_submodule(name, before[name])

    monkeypatch.setattr(cpu_layers, "make_row_exact", make_others)
    if not rows_differ(packed(tiny_model("Llama", **sizes)), 60, 20):
        pytest.skip(f"this CPU needs no {forgotten}")
