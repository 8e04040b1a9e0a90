"""Quantised checkpoints: models say what their weights' values say, with the same bits in any batch."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.linear.block_linear import BlockLinear
from draftwire_core.engine.model.linear.linear_weight import JoinedLinear
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.reading.read_model import check_model_splits
from tests.harness.engine.engines import (
    check_against_plain,
    plain_logits,
    random_tokens,
    run_in_parts,
    tiny_model,
    walk,
)
from tests.harness.models.few_bit_forms import FEW_BIT_FORMS
from tests.harness.models.quantised_checkpoint import FORMS, Tensors, mxfp4, with_values, write_quantised

SIZES = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
ALL_FORMS = FORMS | FEW_BIT_FORMS
ONE_OF_EACH = [*FORMS, "NVFP4", "MXFP4 of compressed-tensors", "MXFP8", "NF4", "LLM.int8", "torchao int4", "BitNet"]
"""Forms, of which several may have weights that lie alike."""
WHOLE = ["full_attention"] * 2
NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2}
NEMOTRON |= {"moe_shared_expert_intermediate_size": 64}
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


def written(place: Path, form: str, name: str = "Qwen3", **sizes: object) -> PreTrainedModel:
    """Writes a tiny model; returns it with the values of the checkpoint."""
    model = tiny_model(name, **(SIZES | sizes))
    return with_values(model, write_quantised(place, model, ALL_FORMS[form]))


def check_values(form: str, place: Path, length: int, prompts: list[int], **sizes: object) -> None:
    """A model says what the values of its checkpoint say, for texts of so many tokens."""
    model = written(place, form, **sizes)
    ours = PackedModel.load(str(place), slots=1000)
    assert ours.weight_type == ALL_FORMS[form].weight_type
    assert ours.parameters == sum(parameter.numel() for parameter in model.parameters())
    # Inputs in another order are put into it between the calls of a layer's parts.
    assert all((layer.compiled is None) is (form == "GPTQ reordered") for layer in ours.model.model.layers)
    assert run_self_test(ours).bit_exact
    texts = [random_tokens(length, seed=seed) for seed in range(2)]
    # Rounding the rows moves logits; with other weights they differ by more than 2.
    assert check_against_plain(model, walk(ours, texts, prompts)) < 0.5


@needs_library
@pytest.mark.parametrize("form", ONE_OF_EACH)
def test_it_says_what_its_values_say(form: str, tmp_path: Path) -> None:
    check_values(form, tmp_path, 20, [12, 5], num_hidden_layers=1)


@needs_library
def test_keys_and_values_in_8_bits(tmp_path: Path) -> None:
    written(tmp_path, "FP8")
    plain, ours = (PackedModel.load(str(tmp_path), slots=400, kv_dtype=kv_dtype) for kv_dtype in ("auto", "q8_0"))
    assert (plain.kv_dtype, ours.kv_dtype) == ("bfloat16", "q8_0") and plain.fingerprint != ours.fingerprint
    assert run_self_test(ours).bit_exact


def check_architecture(name: str, form: str, place: Path, length: int, prompts: list[int]) -> None:
    model = written(place, form, name, tie_word_embeddings=name == "Llama")
    ours = PackedModel.load(str(place), slots=1000)
    assert run_self_test(ours).bit_exact
    texts = [random_tokens(length, seed=seed) for seed in range(2)]
    assert check_against_plain(model, walk(ours, texts, prompts)) < 0.5


@needs_library
@pytest.mark.parametrize(("name", "form"), [("Llama", "W4A16"), ("Qwen2", "FP8"), ("Gemma3", "W4A16"), ("Phi3", "FP8")])
def test_other_architectures(name: str, form: str, tmp_path: Path) -> None:
    check_architecture(name, form, tmp_path, 20, [12, 5])


@needs_library
@pytest.mark.parametrize("form", ["W4A16 asymmetric", "FP8"])
def test_one_call_gives_the_bits_of_its_parts(form: str, tmp_path: Path) -> None:
    written(tmp_path, form)
    ours, texts = PackedModel.load(str(tmp_path), slots=1000), [random_tokens(140, seed=1), random_tokens(25, seed=2)]
    whole = walk(ours, texts, [100, 5])
    run_in_parts(ours)
    in_parts = walk(ours, texts, [100, 5])
    assert all(torch.equal(whole[prefix], in_parts[prefix]) for prefix in whole)


@needs_library
def test_a_layer_may_have_parts_of_several_types(tmp_path: Path) -> None:
    model = tiny_model("Llama", **SIZES)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".k_proj." in name}
    values = dict(write_quantised(tmp_path, model, FORMS["AWQ"], change=lambda tensors: unquantise(tensors, kept)))
    for name in kept:
        del values[name.removesuffix(".weight")]
    with_values(model, values)
    ours = PackedModel.load(str(tmp_path), slots=1000)
    assert all(isinstance(layer.project, JoinedLinear) for layer in ours.model.model.layers)
    texts = [random_tokens(40, seed=seed) for seed in range(2)]
    assert check_against_plain(model, walk(ours, texts, [20, 5])) < 0.5


def unquantise(tensors: Tensors, kept: Tensors) -> None:
    for name, tensor in kept.items():
        layer = name.removesuffix(".weight")
        for own in ("qweight", "qzeros", "scales"):
            del tensors[f"{layer}.{own}"]
        tensors[name] = tensor.to(torch.bfloat16)


@pytest.mark.parametrize("form", ["W4A16", "GPTQ", "GPTQ reordered", "FP8 by block", "NVFP4"])
def test_without_the_library_values_are_the_same(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(tmp_path, form)
    monkeypatch.setattr("draftwire_core.engine.kernels.library._chosen", ["torch"])
    ours = PackedModel.load(str(tmp_path), slots=1000)
    texts = [random_tokens(40, seed=seed) for seed in range(2)]
    assert check_against_plain(model, walk(ours, texts, [20, 5])) < 0.3


@needs_library
def test_the_first_layers_and_a_drafter(tmp_path: Path) -> None:
    written(tmp_path, "W4A16")
    ours = PackedModel.load(str(tmp_path), slots=1000, row_exact=False, layers=2)
    assert (ours.layers, ours.weight_type) == (2, "int4")
    texts = [random_tokens(40, seed=1)]
    whole = PackedModel.load(str(tmp_path), slots=1000)
    assert walk(ours, texts, [20]).keys() == walk(whole.first_layers(2), texts, [20]).keys()


@needs_library
def test_layers_that_are_not_quantised_may_be_at_load(tmp_path: Path) -> None:
    written(tmp_path, "W4A16")
    ours = PackedModel.load(str(tmp_path), slots=100, weights="q8_0")
    head = ours.model.get_output_embeddings()
    assert isinstance(head, BlockLinear) and head.product.weight_type == "q8_0"


def test_it_is_another_model(tmp_path: Path) -> None:
    found = set()
    for form in ("GPTQ", "GPTQ version 2", "AWQ", "W8A16", "FP8", "NF4"):
        written(tmp_path / form, form)
        found.add(PackedModel.load(str(tmp_path / form), slots=100).fingerprint)
    # The same bytes mean something else in the other version.
    config = tmp_path / "GPTQ" / "config.json"
    config.write_text(config.read_text().replace('"checkpoint_format": "gptq"', '"checkpoint_format": "gptq_v2"'))
    found.add(PackedModel.load(str(tmp_path / "GPTQ"), slots=100).fingerprint)
    assert len(found) == 7


def test_what_becomes_float16_is_said_with_what_it_costs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, "NVFP4", hidden_size=512, intermediate_size=1024, num_hidden_layers=2)
    with caplog.at_level("WARNING"):
        PackedModel.load(str(tmp_path), slots=100)
    (told,) = [record.__dict__ for record in caplog.records if record.message == "tensors converted to float16"]
    assert (told["file"], told["type"]) == (str(tmp_path), "nvfp4")
    assert 3 * told["mib_in_file"] <= told["mib_in_memory"] <= 4 * (told["mib_in_file"] + 1)


@needs_library
def test_scales_of_inputs_and_of_the_cache_change_nothing(tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.k_scale"] = torch.tensor([0.3])
        tensors["model.layers.0.self_attn.k_proj.v_scale"] = torch.tensor(0.3)

    plain, scaled, model = tmp_path / "plain", tmp_path / "scaled", tiny_model("Qwen3", **SIZES)
    write_quantised(plain, model, FORMS["FP8 by tensor"])
    write_quantised(scaled, model, ALL_FORMS["FP8 static"], change=add, kv_cache_scheme={"num_bits": 8})
    assert len({PackedModel.load(str(place), slots=100).fingerprint for place in (plain, scaled)}) == 1


@needs_library
def test_a_quantisation_in_a_file_of_its_own(tmp_path: Path) -> None:
    for name, form, told in (
        ("hf_quant_config.json", "ModelOpt NVFP4", {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}),
        (
            "quanto_qmap.json",
            "quanto",
            {"model.layers.0.self_attn.q_proj": {"weights": "qint8", "activations": "none"}},
        ),
        ("quantize_config.json", "GPTQ", {"bits": 4, "group_size": 32, "desc_act": False, "sym": False}),
        ("quant_config.json", "AWQ", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}),
    ):
        model = written(tmp_path / form, form, num_hidden_layers=1)
        config = tmp_path / form / "config.json"
        fields = json.loads(config.read_text())
        del fields["quantization_config"]
        config.write_text(json.dumps(fields))
        (tmp_path / form / name).write_text(json.dumps(told))
        ours = PackedModel.load(str(tmp_path / form), slots=1000)
        assert check_against_plain(model, walk(ours, [random_tokens(20, seed=1)], [12])) < 0.5
        (tmp_path / form / name).write_text("[1")
        with pytest.raises(ModelLoadError, match=rf"{name} cannot be read"):
            PackedModel.load(str(tmp_path / form), slots=100)


@needs_library
def test_modelopt_may_have_quantised_the_cache_alone(tmp_path: Path) -> None:
    model = tiny_model("Qwen3", **SIZES, num_hidden_layers=1)
    model.save_pretrained(tmp_path)
    told = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    assert PackedModel.load(str(tmp_path), slots=100).weight_type == "bfloat16"


def test_pickles_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "torchao int8")
    (tmp_path / "model.safetensors").unlink()
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"from safetensors files only, and the directory has pytorch_model\.bin"):
        PackedModel.load(str(tmp_path), slots=100)


def test_where_they_cannot_run(tmp_path: Path) -> None:
    written(tmp_path, "W4A16")
    with pytest.raises(ModelLoadError, match="quantised checkpoints need dtype bfloat16, not float32"):
        PackedModel.load(str(tmp_path), slots=100, dtype="float32")
    with pytest.raises(ModelLoadError, match="cannot be split among ranks"):
        check_model_splits(str(tmp_path), 2)


def check_experts(name: str, form: str, place: Path, length: int, prompts: list[int], **sizes: object) -> None:
    model = tiny_model(name, **SIZES, moe_intermediate_size=64, **sizes)
    given = EXPERTS_FORMS[form]
    with_values(model, write_quantised(place, model, given))
    ours = PackedModel.load(str(place), slots=1000)
    assert ours.weight_type == given.weight_type
    assert ours.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert run_self_test(ours).bit_exact
    rows = walk(ours, [random_tokens(length, seed=seed) for seed in range(2)], prompts)
    # Rounding sends a few rows to other experts, whose logits are others.
    errors = sorted(distance(row, plain_logits(model, prefix)[-1]) for prefix, row in rows.items())
    assert errors[len(errors) // 2] < 0.15


@needs_library
@pytest.mark.parametrize(
    ("name", "form"), [("Qwen3Moe", "FP8"), ("Mixtral", "AWQ"), ("GptOss", "MXFP4"), ("Qwen3Moe", "NVFP4")]
)
def test_mixtures_of_experts(name: str, form: str, tmp_path: Path) -> None:
    check_experts(name, form, tmp_path, 20, [12, 5], num_hidden_layers=1, layer_types=["full_attention"])


@needs_library
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Ernie4_5_Moe", {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1}),
        ("ExaoneMoe", {"num_experts": 4, "num_shared_experts": 1, "first_k_dense_replace": 1, "layer_types": WHOLE}),
        ("HYV3", {"num_experts": 4, "first_k_dense_replace": 1}),
        ("Laguna", {"num_experts": 4, "shared_expert_intermediate_size": 64, "layer_types": WHOLE}),
        ("Lfm2Moe", {"num_experts": 4, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]}),
        (
            "MiMoV2Flash",
            {"n_routed_experts": 4, "v_head_dim": 32, "layer_types": ["full_attention", "sliding_attention"]},
        ),
        ("MiniMaxM2", {"num_local_experts": 4, "rotary_dim": 16}),
        ("NemotronH", {"n_routed_experts": 4, "layers_block_type": ["mamba", "moe"], **NEMOTRON}),
        ("Phimoe", {"num_local_experts": 4}),
    ],
)
def test_tensors_that_transformers_renames(name: str, sizes: dict[str, object], tmp_path: Path) -> None:
    model = tiny_model(name, **SIZES, num_hidden_layers=2, moe_intermediate_size=64, num_experts_per_tok=2, **sizes)
    with_values(model, write_quantised(tmp_path, model, FORMS["FP8"]))
    ours = PackedModel.load(str(tmp_path), slots=100)
    rows = walk(ours, [random_tokens(6, seed=1)], [3])
    errors = sorted(distance(row, plain_logits(model, prefix)[-1]) for prefix, row in rows.items())
    assert errors[len(errors) // 2] < 0.15


@needs_library
def test_what_an_architecture_keeps_in_float32_is_not_rounded(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
    model = tiny_model("Dots1", **SIZES, moe_intermediate_size=64, n_shared_experts=1, num_experts_per_tok=2, **sizes)
    name, biases = "mlp.gate.e_score_correction_bias", torch.tensor([8.001, 8.005, 8.009, 8.013])
    write_quantised(
        tmp_path, model, FORMS["W4A16"], change=lambda found: found.update({f"model.layers.0.{name}": biases})
    )
    ours = PackedModel.load(str(tmp_path), slots=100)
    # In bfloat16 all of them would be 8.
    assert torch.equal(ours.model.model.layers[0].library_layer.get_buffer(name), biases)
    assert run_self_test(ours).bit_exact


EXPERTS_FORMS = ALL_FORMS | {"MXFP4": mxfp4()}


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).square().mean().sqrt() / expected.std())


@pytest.mark.parametrize("part", ["blocks", "scales", "bias"])
def test_experts_without_a_tensor_are_refused(part: str, tmp_path: Path) -> None:
    name = f"model.layers.0.mlp.experts.down_proj_{part}"
    model = tiny_model("GptOss", num_hidden_layers=1, layer_types=["full_attention"], **SIZES)
    write_quantised(tmp_path, model, mxfp4(), change=lambda tensors: tensors.__delitem__(name))
    with pytest.raises(ModelLoadError, match=f"tensor {re.escape(name)} is missing"):
        PackedModel.load(str(tmp_path), slots=100)


@needs_library
@pytest.mark.slow
class TestAll:
    """More architectures and forms, in longer walks."""

    @pytest.mark.parametrize("form", ALL_FORMS)
    def test_it_says_what_its_values_say(self, form: str, tmp_path: Path) -> None:
        check_values(form, tmp_path, 40, [20, 5])

    @pytest.mark.parametrize("form", ["W4A16", "FP8"])
    @pytest.mark.parametrize("name", ["Llama", "Qwen2", "Gemma3", "Phi3"])
    def test_other_architectures(self, name: str, form: str, tmp_path: Path) -> None:
        check_architecture(name, form, tmp_path, 40, [20, 5])

    @pytest.mark.parametrize(
        ("name", "form"),
        [
            ("Qwen3Moe", "W4A16"),
            ("Qwen3Moe", "FP8"),
            ("Mixtral", "AWQ"),
            ("GptOss", "MXFP4"),
            ("Olmoe", "W4A16"),
            ("Olmoe", "NF4"),
        ],
    )
    def test_mixtures_of_experts(self, name: str, form: str, tmp_path: Path) -> None:
        check_experts(name, form, tmp_path, 40, [20, 5])
