"""Models on the Triton kernels of GPUs, in Triton's interpreter."""

import copy
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma3TextConfig, Gemma4TextConfig, GPT2Config, LlamaConfig, PreTrainedModel

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction

from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.cuda import kernel_layer, kernel_linear, placing
from draftwire_core.engine.model.cuda.kernel_layer import KernelLayer, try_kernels
from draftwire_core.engine.model.cuda.kernel_linear import KernelLinear
from draftwire_core.engine.model.cuda.kernel_support import missing
from draftwire_core.engine.model.cuda.kernels.product import Cuts
from draftwire_core.engine.model.cuda.kernels.product_trial import ProductTrial
from draftwire_core.engine.model.cuda.slots.slot_steps import SlotSteps
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from tests.harness.engine.attention_models import attention_model
from tests.harness.engine.engines import (
    Rows,
    check_against_plain,
    error,
    plain_logits,
    random_tokens,
    tiny_model,
    walk,
)
from tests.harness.engine.pretended_gpu import pretended_gpu
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.kernels.untried_kernels import untried_kernels

prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

TEXTS = [random_tokens(14, seed=1), random_tokens(7, seed=2)]
FEW = [random_tokens(8, seed=1), random_tokens(5, seed=2)]
"""Texts of a walk of three passes, with trees; the first is longer than the windows of KINDS."""
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "biases": ("Qwen2", {}),
    "normed heads": ("Qwen3", {}),
    "norms after blocks, softcap, window": ("Gemma2", {"layer_types": ["sliding_attention"]}),
    "angles of two kinds": ("Gemma3", {"layer_types": ["sliding_attention", "full_attention"]}),
}
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


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    with untried_kernels():
        yield


def small(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of two layers, one with a sliding window and one without if there are both."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if name in ("Gemma2", "Gemma3", "GptOss") else {}
    return tiny_model(name, dtype=dtype, num_hidden_layers=2, **kinds)


def on_kernels(name: str, dtype: torch.dtype = torch.float32, slots: int = 60, **options: Any) -> PackedModel:
    return PackedModel(small(name, dtype), slots, kernels=True, **options)


def few_rows(model: PackedModel) -> Rows:
    """Rows of prompts in parts and of trees of two sequences."""
    return walk(model, FEW, [6, 1], seed=6, chunk=4)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_say_what_those_of_transformers_say(kind: str) -> None:
    name, changes = KINDS[kind]
    layers = len(changes.get("layer_types", [1]))
    library = tiny_model(name, **{"num_hidden_layers": layers, "sliding_window": 3, **changes})
    model = PackedModel(copy.deepcopy(library), 60, kernels=True)
    assert model.layer_kernels == "yes"
    rows = few_rows(model)
    assert len(rows) > 8
    assert check_against_plain(library, rows) < BOUND
    assert model.pool.used == 0


def test_other_layers_attend_by_slots() -> None:
    """Those of experts, with sinks and a window."""
    library = tiny_model("GptOss", num_hidden_layers=1, layer_types=["sliding_attention"], sliding_window=3)
    model = PackedModel(copy.deepcopy(library), 60, kernels=True)
    assert model.layer_kernels == "attention" and isinstance(model.steps, SlotSteps)
    assert check_against_plain(library, few_rows(model)) < BOUND


def test_heads_longer_than_the_kernels_are_for() -> None:
    """In Gemma 3 1B and 4B and Gemma 2 2B a head's share of a row is, but not a head."""
    sizes = {"hidden_size": 1152, "num_attention_heads": 4}
    with pretended_gpu():
        gemma, gemma4, llama, gpt2 = (
            missing(torch.device("cuda"), torch.bfloat16, config, 64)
            for config in (
                Gemma3TextConfig(head_dim=256, **sizes),
                Gemma4TextConfig(head_dim=256, global_head_dim=512, num_hidden_layers=6),
                LlamaConfig(**sizes),
                GPT2Config(n_embd=1152, n_head=4),
            )
        )
    assert gemma is None
    assert gemma4 == "kernels are for heads of up to 256 elements, not 512"
    assert llama == gpt2 == "kernels are for heads of up to 256 elements, not 288"


@pytest.mark.parametrize("name", ["Llama", "GptOss"])
def test_keys_and_values_of_8_bits(name: str) -> None:
    """Of layers on kernels, and of those that only attend by slots."""
    kinds = {"layer_types": ["full_attention"]} if name == "GptOss" else {}
    library = tiny_model(name, num_hidden_layers=1, head_dim=32, **kinds)
    model, plain = (PackedModel(copy.deepcopy(library), 60, kernels=each, kv_dtype="q8_0") for each in (True, False))
    assert model.layer_kernels == ("yes" if name == "Llama" else "attention")
    rows, expected = few_rows(model), few_rows(plain)
    assert rows.keys() == expected.keys() and len(rows) > 8
    assert max(error(rows[row], expected[row]) for row in rows) < BOUND
    assert check_against_plain(library, rows) > BOUND, "they are rounded"
    assert model.cache.bytes == plain.cache.bytes and model.fingerprint == plain.fingerprint


def test_layers_with_more_query_heads_than_the_configuration_says() -> None:
    """Their tiles hold fewer rows."""
    library = tiny_model(
        "Laguna", num_hidden_layers=2, layer_types=["full_attention"] * 2, mlp_layer_types=["dense"] * 2,
        num_attention_heads=6, num_attention_heads_per_layer=[8, 6], num_key_value_heads=1,
    )  # fmt: skip
    model = PackedModel(copy.deepcopy(library), 60, kernels=True)
    assert check_against_plain(library, walk(model, FEW[:1], [7], trees=False, chunk=20)) < BOUND


def test_rows_have_the_same_bits_in_any_batch() -> None:
    """In other parts of prompts, trees and batches, as decoded one by one."""
    model = PackedModel(tiny_model("Llama", torch.bfloat16, num_hidden_layers=1), 60, kernels=True)
    found = few_rows(model)
    alone = walk(model, FEW[:1], [7], trees=False, together=False, chunk=20)
    same = found.keys() & alone.keys()
    assert len(same) > 1 and all(torch.equal(found[row], alone[row]) for row in same)


def test_a_model_that_waits_for_the_device_goes_on_without_graphs() -> None:
    model = PackedModel(tiny_model("Mixtral", num_hidden_layers=1, experts_implementation="eager"), 60, kernels=True)
    model.capture_graphs()
    assert model.steps is not None and model.captured == 0
    assert model.steps.unavailable is not None and model.steps.unavailable.endswith(" waits for the device")
    assert model.graphs == model.steps.unavailable
    assert few_rows(model)


def test_nothing_keeps_a_model_that_is_not_used_any_more() -> None:
    """Its weights, keys and graphs are gigabytes on a GPU, which the model after it needs."""
    model = on_kernels("Llama")
    view = model.first_layers(1)
    for each in (model, view):
        each.capture_graphs()
        walk(each, [random_tokens(4, seed=1)], [3], seed=1)
    gone = [weakref.ref(each) for each in (model.model, model.cache, model.steps, view.model, view.steps)]
    gc.disable()
    try:
        del model, view, each
        assert not [reference for reference in gone if reference() is not None]
    finally:
        gc.enable()


def test_chunks_of_attention() -> None:
    """Only plain passes know them."""
    model = attention_model("chunks and scaled queries")
    with pytest.raises(UnsupportedModelError, match="attention in chunks of 8 positions; --context-length 8 or less"):
        PackedModel(copy.deepcopy(model), 400, kernels=True)
    assert PackedModel(copy.deepcopy(model), 400, kernels=True, context_length=8).steps is not None


def test_captured_steps_and_views() -> None:
    model = on_kernels("Llama")
    text = [random_tokens(4, seed=2)]
    expected = walk(model, text, [3], seed=1)
    model.capture_graphs()
    assert model.captured == 9
    found = walk(model, text, [3], seed=1)
    assert found.keys() == expected.keys() and all(torch.equal(found[row], expected[row]) for row in expected)
    view = model.first_layers(1)
    assert view.captured == 0
    plain = PackedModel(small("Llama"), 60).first_layers(1)
    first, again = (walk(each, text, [4], seed=1) for each in (view, plain))
    assert all(error(first[row], again[row]) < BOUND for row in again)


def test_models_use_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[torch.Size] = []

    def some(weight: torch.Tensor, gate: object, dtype: torch.dtype) -> ProductTrial:
        tried.append(weight.shape)
        return ProductTrial(Cuts((64, 128)), ("a cut",))

    monkeypatch.setattr(kernel_linear, "try_product", some)
    monkeypatch.setattr(kernel_layer, "equal_tiles", lambda kind, dtype, device, kv_dtype: (32,))
    model = on_kernels("Llama").model
    ruled_out = try_kernels(model)
    linears = [each for each in model.modules() if isinstance(each, KernelLinear)]
    assert {each.cuts for each in linears} == {Cuts((64, 128))}
    assert set(tried) == {each.weight.shape for each in linears} and len(tried) < len(linears)
    layers = [each for each in model.modules() if isinstance(each, KernelLayer)]
    assert {layer.tiles for layer in layers} == {(32,)}
    assert ruled_out == ["a cut"] * len(tried) + ["attention in tiles of 16 queries"]


def test_what_a_trial_rules_out_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert on_kernels("Llama").ruled_out_shapes == 0 and not caplog.records
    monkeypatch.setattr(placing, "try_kernels", lambda *_: ["one", "another"])
    assert on_kernels("Llama").ruled_out_shapes == 2
    (record,) = caplog.records
    assert record.message == "kernel shapes ruled out" and record.shapes == ["one", "another"]  # type: ignore[attr-defined]


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
    """Counts launches of Triton kernels, which do not run, and torch's operations within the context."""
    found: Counter[str] = Counter()

    def counted(kernel: Any, *args: Any, **kwargs: Any) -> None:
        found[kernel.fn.__name__] += 1

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
    with torch.inference_mode():
        with launches(monkeypatch):
            model._run_fixed(batch, None)  # makes the cache
        with launches(monkeypatch) as found:
            model._run_fixed(batch, None)
    return found


@pytest.mark.parametrize(("name", "each", "others"), [("Llama", 9, 14), ("Qwen3", 9, 14), ("Gemma2", 10, 18)])
def test_kernels_of_a_pass(name: str, each: int, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/gpu.md has these figures."""
    two, four = (kernels_of(name, layers, monkeypatch) for layers in (2, 4))
    assert four.total() - two.total() == 2 * each, four - two
    assert not {kernel for kernel in four - two if not kernel.endswith("_kernel")}
    assert two.total() - 2 * each == others, two


@pytest.mark.slow
class TestWhole:
    """Models of two layers whose sizes of blocks are tried, in longer walks."""

    @pytest.fixture(autouse=True)
    def untried(self) -> None:
        """Sizes of blocks are tried."""

    @pytest.mark.parametrize("name", FUSED)
    def test_layers_say_what_those_of_transformers_say(self, name: str) -> None:
        model = on_kernels(name)
        assert model.layer_kernels == "yes"
        rows = walk(model, TEXTS, [10, 1], seed=1)
        assert len(rows) > 10
        assert check_against_plain(small(name), rows) < BOUND
        assert model.pool.used == 0

    @pytest.mark.parametrize("name", ["GptOss", "Phi3"])
    def test_other_layers_attend_by_slots(self, name: str) -> None:
        model = on_kernels(name)
        assert model.layer_kernels == "attention" and isinstance(model.steps, SlotSteps)
        rows = walk(model, TEXTS, [10, 1], seed=1)
        assert check_against_plain(small(name), rows) < BOUND

    @pytest.mark.parametrize(("name", "dtype"), [("Llama", torch.bfloat16), ("Gemma3", torch.float32)])
    def test_rows_have_the_same_bits_in_any_batch(self, name: str, dtype: torch.dtype) -> None:
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

    def test_the_self_test_accepts_it(self) -> None:
        report = run_self_test(on_kernels("Llama", slots=12))
        assert report.bit_exact and report.error < report.tolerance

    def test_captured_steps_and_views(self) -> None:
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
