"""Models on a GPU that has no kernels for them: plain passes, on one that is pretended."""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.backends import choose_backend, cuda_backend
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import (
    ARCHITECTURES,
    GREEDY,
    ScriptedDrafter,
    check_against_plain,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
    tiny_model,
    walk,
)
from tests.harness.engine.pretended_gpu import PretendedGpu, plain, pretended_gpu, to_gpu

KINDS = ["GPT2", "Gemma2", "GptOss", "Llama"]
"""Architectures with learned positions, windows and softcap, sinks, and none of these."""
LACKING = "kernels need compute capability 8.0"


@pytest.fixture(scope="module")
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found, pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_backend, "missing", lambda *_: LACKING)
        yield found


def on_gpu(model: PreTrainedModel, slots: int = 4000) -> PackedModel:
    moved = copy.deepcopy(model)
    to_gpu(moved)
    found = PackedModel(moved, slots)
    assert found.device.type == "cuda" and found.steps is None
    return found


def made(name: str) -> PreTrainedModel:
    # The others need operations that CPUs lack.
    return tiny_model(name, experts_implementation="eager")


def check_says(name: str, lengths: tuple[int, ...], prompts: list[int]) -> None:
    model = made(name)
    ours = on_gpu(model)
    rows = walk(ours, [random_tokens(count, seed=count) for count in lengths], prompts, seed=1)
    assert len(rows) > sum(lengths) // 2
    assert check_against_plain(model, {prefix: plain(row) for prefix, row in rows.items()}) < 1e-4
    assert ours.pool.used == 0


@pytest.mark.parametrize("name", KINDS)
def test_they_say_what_plain_forwards_say(name: str, gpu: PretendedGpu) -> None:
    check_says(name, (33, 7), [15, 1])


def test_one_warning_names_the_reason(gpu: PretendedGpu, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "draftwire_core.engine"):
        model = on_gpu(tiny_model("Llama"), 400)
        model.capture_graphs()
    (record,) = caplog.records
    assert record.getMessage() == choose_backend.PLAIN and vars(record)["reason"] == LACKING
    assert model.layer_kernels == LACKING and model.graphs == "0" and model.most_rows == 256
    assert not model.draws_in_pass and model.can_be_tapped


@pytest.mark.parametrize(("kv_dtype", "reason"), [("q8_0", f"kernels: {LACKING}"), ("float16", "a CPU, not cuda")])
def test_keys_and_values_of_other_types_are_refused(kv_dtype: KvDtype, reason: str, gpu: PretendedGpu) -> None:
    """They would be written by code for CPUs."""
    model = tiny_model("Llama", head_dim=32)
    to_gpu(model)
    with pytest.raises(UnsupportedModelError, match=rf"keys and values in {kv_dtype} \(--kv-dtype\) need {reason}$"):
        PackedModel(model, 400, kv_dtype=kv_dtype)


@pytest.mark.parametrize("draws", ["kernels", "operations of torch"])
def test_the_tokens_of_the_cpu(draws: str, gpu: PretendedGpu) -> None:
    model = tiny_model("Llama")
    samplings = [GREEDY, SamplingParams(temperature=0.8, seed=1), SamplingParams(top_p=0.9, seed=3)]
    specs = specs_of([random_tokens(count, seed=count) for count in (9, 3, 12)], 6, samplings)
    expected = generate(engine_of(packed(model)), specs, together=False).tokens
    ours = on_gpu(model, 400)
    if draws == "kernels":
        pytest.importorskip("triton")
        assert ours.draw_kernels == "yes"
    else:
        ours.sampler = None
    drafted = generate(engine_of(ours), specs, ScriptedDrafter(expected))
    assert drafted.tokens == expected and drafted.accepted > 4
    assert ours.pool.used == 0


def test_the_self_test_accepts_them(gpu: PretendedGpu) -> None:
    assert run_self_test(on_gpu(tiny_model("Llama", num_hidden_layers=1), 600)).error < 1e-3


def test_weights_of_few_bits_need_the_kernels(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_backend, "weights_fingerprint", lambda *_: "")  # numpy has no bfloat16
    moved = tiny_model("Llama", torch.bfloat16)
    to_gpu(moved)
    with pytest.raises(UnsupportedModelError, match=f"weights int8 on a GPU need kernels .*: {LACKING}"):
        PackedModel(moved, 400, row_exact=False, weights="int8")


class InnerSizes(TorchDispatchMode):
    """Records the inner sizes of batched matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call.overloadpacket is torch.ops.aten.bmm:
            self.found.append(args[0].shape[2])
        return call(*args, **(kwargs or {}))


def check_products(name: str) -> None:
    """On GPUs torch compiles outer products at run time, which needs a C compiler."""
    model = on_gpu(made(name), 200)
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
def test_no_product_is_an_outer_product(name: str, gpu: PretendedGpu) -> None:
    check_products(name)


@pytest.mark.slow
class TestAll:
    """All architectures."""

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_they_say_what_plain_forwards_say(self, name: str, gpu: PretendedGpu) -> None:
        check_says(name, (33, 7, 50, 20), [15, 1, 40, 5])

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_no_product_is_an_outer_product(self, name: str, gpu: PretendedGpu) -> None:
        check_products(name)
