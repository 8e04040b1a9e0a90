"""Models with weights of few bits on the kernels of GPUs, in Triton's interpreter."""

import copy
from pathlib import Path
from typing import get_args

import pytest
import torch

pytest.importorskip("triton")

from speculative_engine.checkpoint.checkpoint import Checkpoint
from speculative_engine.checkpoint.gguf_file import GgufFile
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.cuda import kernel_linear
from speculative_engine.model.cuda.kernel_linear import KernelLinear
from speculative_engine.model.cuda.kernels.product import ROW_BLOCKS
from speculative_engine.model.cuda.weights.device_weight import DeviceWeight
from speculative_engine.model.cuda.weights.packing import narrowed_on, stored_on
from speculative_engine.model.cuda.weights.placing import PackedEmbedding, narrow
from speculative_engine.model.linear.block_weight import BlockWeight, from_blocks, in_blocks
from speculative_engine.model.packed_model import PackedModel, UnsupportedModelError
from speculative_engine.model.reading.read_model import read_model
from speculative_engine.model.weight_names import Weights
from tests.harness.engine.engines import check_against_plain, plain_logits, random_tokens, tiny_model, walk
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.models.gguf_model import write_gguf
from tests.harness.models.quantised_checkpoint import FORMS, with_values, write_quantised

prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

SIZES = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "num_hidden_layers": 1}
TEXTS = [random_tokens(6, seed=1), random_tokens(4, seed=2)]
DOWN = "model.layers.0.mlp.down_proj"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of blocks are tried in the tests of products, which takes long in the interpreter."""
    monkeypatch.setattr(kernel_linear, "equal_blocks", lambda *_: ROW_BLOCKS)


def loaded(place: Path, slots: int = 60) -> PackedModel:
    return PackedModel(read_model(Checkpoint.find(str(place)), CPU, dtype="auto"), slots, kernels=True)


@pytest.mark.parametrize("form", [name for name in FORMS if name != "MXFP4"])
def test_checkpoints_say_what_their_values_say(form: str, tmp_path: Path) -> None:
    plain = tiny_model("Qwen3", **SIZES)
    plain = with_values(plain, write_quantised(tmp_path, plain, FORMS[form]))
    on_cpu = PackedModel.load(str(tmp_path), slots=60)
    ours = loaded(tmp_path)
    assert ours.weight_type == FORMS[form].weight_type and ours.fingerprint == on_cpu.fingerprint
    packed = [each for each in ours.model.modules() if isinstance(each, KernelLinear) and each.packed is not None]
    assert len(packed) >= 4
    down = ours.model.get_submodule(
        "model.layers.0.library_layer.mlp.down_proj" if ours.layer_kernels == "yes" else DOWN
    )
    assert isinstance(down, KernelLinear) and down.packed is not None
    expected = plain.get_submodule(DOWN).weight
    assert isinstance(expected, torch.Tensor)
    assert torch.allclose(down.packed.values(torch.arange(128)), expected.float(), rtol=2**-8)
    rows = walk(ours, TEXTS, [4, 1], seed=1)
    assert check_against_plain(plain, rows) < 0.2  # rows are bfloat16
    alone = walk(ours, TEXTS[:1], [3], seed=2, trees=False, together=False)
    same = rows.keys() & alone.keys()
    assert len(same) > 1 and all(torch.equal(rows[row], alone[row]) for row in same)


@pytest.mark.parametrize("form", ["FP8", "AWQ"])
def test_the_self_test_tells_whether_rows_have_the_same_bits(form: str, tmp_path: Path) -> None:
    plain = tiny_model("Qwen3", **SIZES)
    write_quantised(tmp_path, plain, FORMS[form])
    report = run_self_test(loaded(tmp_path, slots=12))
    assert report.bit_exact and report.error < report.tolerance


def test_other_layers_have_packed_weights(tmp_path: Path) -> None:
    model = tiny_model("Phi3", **SIZES)
    plain = with_values(model, write_quantised(tmp_path, model, FORMS["FP8"]))
    ours = loaded(tmp_path)
    assert ours.layer_kernels == "attention"
    assert check_against_plain(plain, walk(ours, TEXTS[1:], [2], seed=1)) < 0.2


@pytest.mark.parametrize(("type_name", "head"), [("Q8_0", "Q8_0"), ("Q4_0", "Q6_K"), ("Q8_0", "F16")])
def test_files_of_gguf(type_name: str, head: str, tmp_path: Path) -> None:
    """Their embedding and head may have another type than the layers."""
    model = tiny_model("Llama", torch.bfloat16, **(SIZES | {"hidden_size": 256, "head_dim": 64}))
    path = write_gguf(
        tmp_path / "model.gguf",
        model.config,
        model.state_dict(),
        lambda name: head if "embed" in name or "lm_head" in name else type_name,
    )
    values = {name: tensor.dequantised() for name, tensor in GgufFile.open(path).tensors.items()}
    model.float().load_state_dict(values, strict=False)
    ours = loaded(path)
    assert ours.layer_kernels == "yes" and ours.weight_type == type_name.lower()
    assert isinstance(ours.model.get_input_embeddings(), PackedEmbedding) is (head == "Q8_0")
    assert check_against_plain(model, walk(ours, TEXTS[1:], [2], seed=1)) < 0.2


def test_types_that_have_no_kernel_are_refused(tmp_path: Path) -> None:
    model = tiny_model(
        "Llama", torch.bfloat16, **(SIZES | {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64})
    )
    path = write_gguf(tmp_path / "model.gguf", model.config, model.state_dict(), "Q4_K")
    with pytest.raises(UnsupportedModelError, match=r"layer model.layers.0.self_attn.q_proj: weights of type q4_k"):
        loaded(path)


def test_experts_are_refused(tmp_path: Path) -> None:
    model = tiny_model("Qwen3Moe", hidden_size=128, intermediate_size=192, moe_intermediate_size=64, head_dim=32)
    write_quantised(tmp_path, model, FORMS["W4A16"])
    with pytest.raises(UnsupportedModelError, match=r"layer model.layers.0.mlp.experts: .* run on CPUs only"):
        loaded(tmp_path)


@pytest.mark.parametrize("weights", [each for each in get_args(Weights) if each != "checkpoint"])
def test_plain_weights_are_quantised(weights: Weights) -> None:
    model = tiny_model("Llama", torch.bfloat16, **SIZES)
    narrowed = copy.deepcopy(model)
    narrow(narrowed, weights)
    whole, found = (plain_logits(each, TEXTS[0]).float() for each in (model, narrowed))
    assert 0 < (whole - found).norm() / whole.norm() < (0.05 if "8" in weights else 0.4)
    ours = PackedModel(narrowed, 60, kernels=True)
    assert ours.layer_kernels == "yes"
    rows = walk(ours, TEXTS[1:], [2], seed=1)
    assert len(rows) > 1


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_blocks_keep_their_values(kind: str) -> None:
    assert kind == "q8_0" or kind == "q4_0"
    weight = torch.randn(70, 96, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    raw = in_blocks(weight, kind)
    packed = stored_on(CPU, BlockWeight(kind, raw))
    assert torch.equal(packed.values(torch.arange(70)).to(torch.bfloat16), from_blocks(raw, kind))
    embedding = PackedEmbedding(packed)
    assert torch.equal(embedding(torch.tensor([[3, 69]])), from_blocks(raw, kind)[[3, 69]].unsqueeze(0))


@pytest.mark.parametrize(("weights", "error"), [("int8", 1 / 254), ("int4", 1 / 20)])
def test_values_are_near_the_weights(weights: Weights, error: float) -> None:
    weight = torch.randn(20, 128, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    packed = narrowed_on(CPU, weight, weights)
    assert isinstance(packed, DeviceWeight) and packed.device == CPU
    found = packed.values(torch.arange(20))
    largest = weight.float().abs().amax(1, keepdim=True)
    assert ((found - weight.float()).abs() <= 2.1 * error * largest).all()


def test_a_cpu_has_no_four_bits() -> None:
    with pytest.raises(UnsupportedModelError, match="weights int4 need bfloat16 on a GPU, not bfloat16 on cpu"):
        PackedModel(tiny_model("Llama", torch.bfloat16), 100, row_exact=False, weights="int4")
