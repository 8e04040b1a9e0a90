"""Models on the Triton kernels of GPUs, in Triton's interpreter."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction

from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.cuda.kernel_layer import KernelLayer
from speculative_engine.model.cuda.slots.slot_steps import SlotSteps
from speculative_engine.model.packed_model import PackedModel
from tests.harness.engine.engines import check_against_plain, error, plain_logits, random_tokens, tiny_model, walk
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

TEXTS = [random_tokens(14, seed=1), random_tokens(7, seed=2)]
FUSED = ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2", "Gemma3"]
BOUND = 1e-4
"""Of the difference from transformers' layers in float32, in standard deviations of the logits."""
NO_KERNELS = {
    "view",
    "_unsafe_view",
    "reshape",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "expand",
    "t",
    "alias",
    "detach",
    "empty",
    "empty_like",
    "split",
    "split_with_sizes",
    "as_strided",
}
"""Operations that launch nothing on a GPU."""


def small(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of two layers, one with a sliding window and one without if there are both."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if name in ("Gemma2", "Gemma3", "GptOss") else {}
    return tiny_model(name, dtype=dtype, num_hidden_layers=2, **kinds)


def on_kernels(name: str, dtype: torch.dtype = torch.float32, slots: int = 60, **options: Any) -> PackedModel:
    return PackedModel(small(name, dtype), slots, kernels=True, **options)


@pytest.mark.parametrize("name", FUSED)
def test_layers_say_what_those_of_transformers_say(name: str) -> None:
    model = on_kernels(name)
    assert model.layer_kernels == "yes"
    rows = walk(model, TEXTS, [10, 1], seed=1)
    assert len(rows) > 10
    assert check_against_plain(small(name), rows) < BOUND
    assert model.pool.used == 0


@pytest.mark.parametrize("name", ["GptOss", "Phi3"])
def test_other_layers_attend_by_slots(name: str) -> None:
    model = on_kernels(name)
    assert model.layer_kernels == "attention" and isinstance(model.steps, SlotSteps)
    rows = walk(model, TEXTS, [10, 1], seed=1)
    assert check_against_plain(small(name), rows) < BOUND


@pytest.mark.parametrize(("name", "dtype"), [("Llama", torch.bfloat16), ("Gemma3", torch.float32)])
def test_rows_have_the_same_bits_in_any_company(name: str, dtype: torch.dtype) -> None:
    """In prompts of other chunks, trees and batches, as decoded one by one."""
    model = on_kernels(name, dtype)
    found = walk(model, TEXTS, [10, 3], seed=1)
    alone = walk(model, TEXTS, [8, 1], seed=2, trees=False, together=False, chunk=5)
    same = found.keys() & alone.keys()
    assert len(same) > 4 and all(torch.equal(found[row], alone[row]) for row in same)
    if dtype == torch.bfloat16:  # rounded less often than by transformers' layers
        wide = small(name, dtype).float()
        library = {prefix: plain_logits(small(name, dtype), prefix)[-1] for prefix in found}
        assert check_against_plain(wide, found) < check_against_plain(wide, library)


def test_the_self_test_accepts_it() -> None:
    report = run_self_test(on_kernels("Llama", slots=12))
    assert report.bit_exact and report.error < report.tolerance


def test_reproducible_models_run_on_kernels_if_these_compute_everything() -> None:
    assert isinstance(on_kernels("Llama", reproducible=True).steps, SlotSteps)
    other = on_kernels("Phi3", reproducible=True)
    assert other.layer_kernels == "no" and not isinstance(other.steps, SlotSteps)
    rows = walk(other, [random_tokens(9, seed=2)], [3], seed=1)
    assert check_against_plain(small("Phi3"), rows) < BOUND


def test_captured_steps_and_views() -> None:
    model = on_kernels("Llama")
    text = TEXTS[1:]
    expected = walk(model, text, [3], seed=1)
    model.capture_graphs()
    assert model.captured == 9
    found = walk(model, text, [3], seed=1)
    assert found.keys() == expected.keys() and all(torch.equal(found[row], expected[row]) for row in expected)
    view = model.first_layers(1)
    assert view.captured == 0
    plain = PackedModel(small("Llama"), 60).first_layers(1)
    first, again = (walk(each, text, [3], seed=1) for each in (view, plain))
    assert all(error(first[row], again[row]) < BOUND for row in again)


def test_weights_are_in_memory_once() -> None:
    model = on_kernels("Qwen2")
    layer = model.model.get_decoder().layers[0]
    assert isinstance(layer, KernelLayer)
    attention, mlp = layer.library_layer.self_attn, layer.library_layer.mlp
    for joined, parts in (
        (layer.project, (attention.q_proj, attention.k_proj, attention.v_proj)),
        (layer.gate_and_up, (mlp.gate_proj, mlp.up_proj)),
    ):
        storage = joined.weight.untyped_storage().data_ptr()
        assert all(part.weight.untyped_storage().data_ptr() == storage for part in parts)
    assert model.parameters == PackedModel(small("Qwen2"), 60).parameters


class Operations(TorchDispatchMode):
    """Counts torch's operations that launch a kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.overloadpacket.__name__
        out = call(*args, **(kwargs or {}))
        converted = name != "to" or out.data_ptr() != args[0].data_ptr()
        if converted and name not in NO_KERNELS:
            self.found[name] += 1
        return out


@contextmanager
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts launches of Triton kernels and torch's operations within the context."""
    found: Counter[str] = Counter()
    run = InterpretedFunction.run

    def counted(kernel: Any, *args: Any, **kwargs: Any) -> None:
        found[kernel.fn.__name__] += 1
        with torch.utils._python_dispatch._disable_current_modes():  # the interpreter's own
            run(kernel, *args, **kwargs)

    operations = Operations()
    with monkeypatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", counted)
        with operations:
            yield found
    found.update(operations.found)


def kernels_of(name: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The kernels of a captured pass of two rows."""
    model = PackedModel(tiny_model(name, torch.bfloat16, num_hidden_layers=layers), 600, kernels=True)
    assert isinstance(model.steps, SlotSteps)
    batch = model.steps._batch(2)
    model._run_fixed(batch, None)  # makes the cache
    with torch.inference_mode(), launches(monkeypatch) as found:
        model._run_fixed(batch, None)
    return found


@pytest.mark.parametrize(("name", "each", "others"), [("Llama", 9, 14), ("Qwen3", 9, 14), ("Gemma2", 10, 18)])
def test_kernels_of_a_pass(name: str, each: int, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/gpu.md has these figures."""
    two, four = (kernels_of(name, layers, monkeypatch) for layers in (2, 4))
    assert four.total() - two.total() == 2 * each, four - two
    assert not {kernel for kernel in four - two if not kernel.endswith("_kernel")}
    assert two.total() - 2 * each == others, two
