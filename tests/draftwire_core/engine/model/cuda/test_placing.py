"""Models with weights of few bits on the kernels of GPUs, in Triton's interpreter."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import get_args

import pytest
import torch
from transformers import PreTrainedModel

pytest.importorskip("triton")

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.kernels.products.gemm_blocks import BlockType
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.cuda.kernel_linear import KernelLinear, MixedKernelLinear
from draftwire_core.engine.model.cuda.placing import PackedEmbedding, narrow
from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight
from draftwire_core.engine.model.cuda.weights.packing import narrowed_on, stored_on
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from draftwire_core.engine.model.reading.read_model import read_model
from tests.harness.engine.engines import check_against_plain, plain_logits, random_tokens, tiny_model, walk
from tests.harness.engine.random_blocks import random_blocks, values
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.kernels.untried_kernels import untried_kernels
from tests.harness.models.few_bit_forms import FEW_BIT_FORMS
from tests.harness.models.gguf_model import write_gguf
from tests.harness.models.quantised_checkpoint import FORMS, with_values, write_quantised

prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

SIZES = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "num_hidden_layers": 1}
SMALL = SIZES | {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
TEXTS = [random_tokens(6, seed=1), random_tokens(4, seed=2)]
DOWN = "model.layers.0.mlp.down_proj"
CPU = torch.device("cpu")
BITS: dict[BlockType, float] = {
    "q8_0": 8.5,
    "q4_0": 4.5,
    "q4_1": 5,
    "q5_0": 5.5,
    "q5_1": 6,
    "q4_k": 4.625,
    "q5_k": 5.625,
    "q6_k": 6.5625,
    "mxfp4": 4.5,
}
"""Bits of a value on a GPU: those of the file, but for Q4_K and Q5_K, whose scales have 8 bits instead of 6, and MXFP4,
whose scales have 16 instead of 8."""
FILES = [("Q8_0", "Q8_0"), ("Q4_0", "Q6_K"), ("Q5_0", "Q4_1"), ("Q4_1", "F16"), ("Q5_1", "Q5_1")]
FILES += [("Q4_K", "Q6_K"), ("Q5_K", "Q5_K"), ("Q6_K", "Q4_K"), ("MXFP4", "F16")]
"""Types of layers, and of embedding and output head."""
MIXED = {"v_proj": "Q6_K", "down": "Q6_K"}
"""Types of layers by parts of their names, in some layers of a file of Q4_K_M."""
QUANTISED = FORMS | {name: FEW_BIT_FORMS[name] for name in ["MXFP4 of compressed-tensors"]}


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    """Sizes of blocks are tried in the tests of products."""
    with untried_kernels():
        yield


def loaded(place: Path, slots: int = 60) -> PackedModel:
    return PackedModel(read_model(Checkpoint.find(str(place)), CPU, dtype="auto"), slots, kernels=True)


def written(place: Path, form: str, sizes: dict[str, int] = SIZES) -> PreTrainedModel:
    """The model that a checkpoint of a form says."""
    plain = tiny_model("Qwen3", **sizes)
    return with_values(plain, write_quantised(place, plain, QUANTISED[form]))


def check_batch_invariance(model: PackedModel, plain: PreTrainedModel, prompts: list[int], seed: int) -> None:
    """Rows are those of the plain model, and have the same bits among others and in trees as alone."""
    rows = walk(model, TEXTS, prompts, seed=seed)
    assert check_against_plain(plain, rows) < 0.2  # rows are bfloat16
    alone = walk(model, TEXTS[:1], [prompts[0] - 1], seed=2, trees=False, together=False)
    same = rows.keys() & alone.keys()
    assert len(same) > 1 and all(torch.equal(rows[row], alone[row]) for row in same)


@pytest.mark.parametrize("form", QUANTISED)
def test_checkpoints_say_what_their_values_say(form: str, tmp_path: Path) -> None:
    plain = written(tmp_path, form)
    on_cpu = PackedModel.load(str(tmp_path), slots=60)
    ours = loaded(tmp_path)
    assert ours.weight_type == QUANTISED[form].weight_type and ours.fingerprint == on_cpu.fingerprint
    packed = [each for each in ours.model.modules() if isinstance(each, KernelLinear) and each.packed is not None]
    assert len(packed) >= 4
    down = ours.model.get_submodule(
        "model.layers.0.library_layer.mlp.down_proj" if ours.layer_kernels == "yes" else DOWN
    )
    assert isinstance(down, KernelLinear) and down.packed is not None
    expected = plain.get_submodule(DOWN).weight
    assert isinstance(expected, torch.Tensor)
    assert torch.allclose(down.packed.values(torch.arange(128)), expected.float(), rtol=2**-8)


@pytest.mark.parametrize("form", ["FP8", "GPTQ reordered"])
def test_rows_of_checkpoints(form: str, tmp_path: Path) -> None:
    """Of 8 bits, and of 4 bits with inputs in another order."""
    plain = written(tmp_path, form, SMALL)
    check_batch_invariance(loaded(tmp_path), plain, [5, 3], seed=1)


def read_file(
    type_name: str, head: str, place: Path, others: Mapping[str, str] | None = None, **sizes: int
) -> tuple[PackedModel, PreTrainedModel]:
    """Writes a GGUF file; returns the model on the kernels, and the plain one with the file's values. others: types by
    parts of names."""
    inner = 256 if type_name.endswith("_K") else 192
    wide = SIZES | {"hidden_size": 256, "head_dim": 64, "intermediate_size": inner}
    model = tiny_model("Llama", torch.bfloat16, **(wide | sizes))
    types = {"embed": head, "lm_head": head, **(others or {})}
    path = write_gguf(
        place / "model.gguf",
        model.config,
        model.state_dict(),
        lambda name: next((each for part, each in types.items() if part in name), type_name),
    )
    values = {name: tensor.dequantised() for name, tensor in GgufFile.open(path).tensors.items()}
    model.float().load_state_dict(values, strict=False)
    ours = loaded(path)
    assert ours.layer_kernels == "yes" and ours.weight_type == type_name.lower()
    assert isinstance(ours.model.get_input_embeddings(), PackedEmbedding) is (head != "F16")
    return ours, model


@pytest.mark.parametrize(("type_name", "head"), FILES)
def test_files_of_gguf(type_name: str, head: str, tmp_path: Path) -> None:
    """Their embedding and head may have another type than the layers."""
    ours, model = read_file(type_name, head, tmp_path)
    down, output = ours.model.get_submodule("model.layers.0.library_layer.mlp.down_proj"), ours.model.lm_head
    for linear, plain in ((down, model.get_submodule(DOWN)), (output, model.lm_head)):
        assert isinstance(linear, KernelLinear)
        rows = len(plain.weight)
        if linear.packed is None:
            assert torch.equal(linear.weight.float(), plain.weight.bfloat16().float())
        else:
            assert torch.equal(linear.packed.values(torch.arange(rows)), plain.weight)
    ids = torch.arange(300).unsqueeze(0)
    embedded = ours.model.get_input_embeddings()(ids).float()
    assert torch.equal(embedded, model.get_input_embeddings()(ids).bfloat16().float())


def test_rows_of_a_gguf_file(tmp_path: Path) -> None:
    ours, model = read_file("Q8_0", "Q8_0", tmp_path, **SMALL)
    assert check_against_plain(model, walk(ours, TEXTS[1:], [3], trees=False, chunk=4)) < 0.2


def test_projections_of_several_types(tmp_path: Path) -> None:
    """As in a file of Q4_K_M, whose values are Q6_K in half of the layers."""
    ours, model = read_file("Q4_K", "F16", tmp_path, MIXED)
    project, plain = ours.model.get_submodule("model.layers.0.project"), model.model.layers[0].self_attn
    assert isinstance(project, MixedKernelLinear) and [each.out_features for each in project.parts] == [384, 128]
    inputs = torch.randn(3, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight = torch.cat([each.weight for each in (plain.q_proj, plain.k_proj, plain.v_proj)])
    assert torch.allclose(project.rows(inputs).float(), inputs.float() @ weight.t(), rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("head", ["Q6_K", "F16"])
def test_embeddings_that_are_scaled(head: str, tmp_path: Path) -> None:
    model = tiny_model("Gemma3", torch.bfloat16, **(SIZES | {"hidden_size": 256}))
    path = write_gguf(
        tmp_path / "model.gguf",
        model.config,
        model.state_dict(),
        lambda name: head if "embed" in name else "Q8_0",
    )
    ids = torch.arange(300).unsqueeze(0)
    on_cpu = PackedModel.load(str(path), slots=60)
    ours, expected = (each.model.get_input_embeddings()(ids) for each in (loaded(path), on_cpu))
    assert torch.equal(ours, expected) and ours.abs().max() > 10 * model.get_input_embeddings().weight.abs().max()


def test_experts_are_refused(tmp_path: Path) -> None:
    model = tiny_model("Qwen3Moe", hidden_size=128, intermediate_size=192, moe_intermediate_size=64, head_dim=32)
    write_quantised(tmp_path, model, FORMS["W4A16"])
    with pytest.raises(UnsupportedModelError, match=r"layer model.layers.0.mlp.experts: .* run on CPUs only"):
        loaded(tmp_path)


@pytest.mark.parametrize("weights", [each for each in get_args(Weights) if each != "checkpoint"])
def test_plain_weights_are_quantised(weights: Weights) -> None:
    model = tiny_model("Llama", torch.bfloat16, **SMALL)
    narrowed = copy.deepcopy(model)
    narrow(narrowed, weights)
    whole, found = (plain_logits(each, TEXTS[0]).float() for each in (model, narrowed))
    assert 0 < (whole - found).norm() / whole.norm() < (0.05 if "8" in weights else 0.4)
    ours = PackedModel(narrowed, 60, kernels=True)
    assert ours.layer_kernels == "yes"
    rows = walk(ours, TEXTS[1:], [3], trees=False, chunk=4)
    assert check_against_plain(model.float(), rows) < (0.3 if "8" in weights else 4)


@pytest.mark.parametrize("kind", BITS)
def test_blocks_keep_their_values(kind: BlockType) -> None:
    """Of any bytes, and in no more memory than the table says."""
    raw = random_blocks(kind, 70, 512)
    packed, expected = stored_on(CPU, BlockWeight(kind, raw)), values(kind, raw)
    assert torch.equal(packed.values(torch.arange(70)), expected)
    embedding, some = PackedEmbedding(packed), torch.tensor([[3, 69]])
    assert torch.equal(embedding(some), expected[some].to(torch.bfloat16))
    tensors = [each for each in astuple(packed) if isinstance(each, torch.Tensor)]
    assert 8 * sum(each.nbytes for each in tensors) == BITS[kind] * 70 * 512


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


@pytest.mark.slow
class TestWalks:
    """Whole walks of each form and type."""

    @pytest.mark.parametrize("form", QUANTISED)
    def test_checkpoints_say_what_their_values_say(self, form: str, tmp_path: Path) -> None:
        plain = written(tmp_path, form)
        check_batch_invariance(loaded(tmp_path), plain, [4, 1], seed=1)

    @pytest.mark.parametrize("form", ["FP8", "AWQ"])
    def test_the_self_test_tells_whether_rows_have_the_same_bits(self, form: str, tmp_path: Path) -> None:
        plain = tiny_model("Qwen3", **SIZES)
        write_quantised(tmp_path, plain, QUANTISED[form])
        report = run_self_test(loaded(tmp_path, slots=12))
        assert report.bit_exact and report.error < report.tolerance

    @pytest.mark.parametrize(
        ("type_name", "head"), [("Q8_0", "Q8_0"), ("Q4_0", "Q6_K"), ("Q4_K", "F16"), ("Q5_K", "Q6_K"), ("Q5_1", "Q4_1")]
    )
    def test_files_of_gguf(self, type_name: str, head: str, tmp_path: Path) -> None:
        others = MIXED if type_name == "Q4_K" else None
        check_batch_invariance(*read_file(type_name, head, tmp_path, others), [4, 1], seed=1)
