"""Quantised checkpoints are read value for value, and what is not supported is refused by its name."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AwqConfig, FineGrainedFP8Config, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.quantised.formats import read_format
from draftwire_core.engine.checkpoint.quantised.stored_weight import (
    ConvertedWeight,
    FloatWeight,
    IntegerWeight,
    Mxfp4Blocks,
)
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles
from draftwire_core.engine.model.linear.block_weight import from_blocks
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import tiny_model
from tests.harness.models.few_bit_forms import FEW_BIT_FORMS
from tests.harness.models.quantised_checkpoint import FORMS, Form, Layer, Tensors, gptq, write_quantised

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}
LAYER = "model.layers.0.self_attn.q_proj"
BY_LAYER = {"-:.*lm_head": {}, r"+:.*\.down_proj": {"bits": 8, "group_size": -1}, ".*q_proj": {"desc_act": True}}
"""Layers of a checkpoint of GPTQModel that are packed in another way than the rest, or not quantised."""


def by_layer(weight: torch.Tensor) -> Layer:
    return (gptq(bits=8, group=-1) if weight.shape[1] == SIZES["intermediate_size"] else gptq()).quantise(weight)


ALL_FORMS = FORMS | FEW_BIT_FORMS | {"GPTQ by layer": Form({**gptq().config, "dynamic": BY_LAYER}, by_layer, "int4")}


@cache
def llama() -> PreTrainedModel:
    """The model whose weights are quantised."""
    return tiny_model("Llama", **SIZES)


@pytest.mark.parametrize("name", ALL_FORMS)
def test_values_are_those_that_its_tool_reads(name: str, tmp_path: Path) -> None:
    values = write_quantised(tmp_path, llama(), ALL_FORMS[name])
    form = read_format(ALL_FORMS[name].config, TensorFiles.open(Checkpoint.find(str(tmp_path))))
    assert form.weight("lm_head", 300, 128) is None
    for layer, expected in values.items():
        found = form.weight(layer, *expected.shape)
        assert found is not None
        for first, last in ((0, len(expected)), (3, 21)):
            if isinstance(found, IntegerWeight):
                integers, scales, zeros = found.rows(first, last)
                assert (integers.dtype, scales.dtype, zeros.dtype) == (torch.uint8, torch.float32, torch.uint8)
                order = torch.arange(found.inputs) if found.order is None else found.order
                wholes = integers[:, order].unflatten(1, (-1, found.group)).float() - zeros[..., None].float()
                values_of_rows = (wholes * scales[..., None]).flatten(1)[:, order.argsort()]
            elif isinstance(found, ConvertedWeight):
                values_of_rows = found.rows(first, last)
            elif isinstance(found, Mxfp4Blocks):
                values_of_rows = from_blocks(found.as_gguf()[first:last], "mxfp4").float()
            else:
                floats, scales = found.rows(first, last)
                values_of_rows = floats.float() * scales.repeat_interleave(found.group, 1)[:, : found.inputs]
            assert torch.equal(values_of_rows, expected[first:last])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        # By AutoRound if it does not load the model; such files list what they leave out.
        ("AutoRound", {"model_free": True, "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}}}),
        ("GPTQ", {"pack_impl": "cpu", "meta": {"quantizer": ["gptqmodel:5.6.0"]}}),
        ("GPTQ", {"method": "gptq", "format": "gptq", "checkpoint_format": "gptq", "meta": {"gc_mode": "interval"}}),
        ("GPTQ", {"dynamic": {"-:model.layers.9": {}}, "lm_head": False}),
        ("GPTQ", {"provider": "auto-round", "data_type": "int", "iters": 1000, "autoround_version": "0.8.0"}),
        # AutoRound and GPTQModel write zero points of symmetric weights, too.
        ("AWQ", {"provider": "auto-round", "data_type": "int", "seqlen": 512, "sym": True, "zero_point": False}),
        ("AWQ", {"method": "awq", "format": "gemm", "checkpoint_format": "gemm", "version": "gemm", "lm_head": False}),
        ("AWQ", {"pack_dtype": "int32", "desc_act": False, "meta": {"quantizer": ["gptqmodel:5.6.0"]}}),
        ("AWQ", AwqConfig(group_size=32).to_dict()),  # of transformers 5
        ("FP8", FineGrainedFP8Config().to_dict() | {"weight_block_size": [128, 128]}),
    ],
)
def test_what_tools_tell_of_their_work(name: str, told: dict[str, Any], tmp_path: Path) -> None:
    values = write_quantised(tmp_path, llama(), ALL_FORMS[name])
    form = read_format(ALL_FORMS[name].config | told, TensorFiles.open(Checkpoint.find(str(tmp_path))))
    assert all(form.weight(layer, *expected.shape) is not None for layer, expected in values.items())


@pytest.mark.parametrize(
    ("layer", "ignored"),
    [
        ("language_model.lm_head", "lm_head"),
        ("lm_head", "language_model.lm_head"),
        ("language_model.model.layers.0.mlp.up_proj", "model.language_model.layers.0.mlp.up_proj"),
    ],
)
def test_layers_of_multimodal_models_are_left_out_by_older_and_newer_names(
    layer: str, ignored: str, tmp_path: Path
) -> None:
    write_quantised(tmp_path, llama(), FORMS["W4A16"])
    config = {**FORMS["W4A16"].config, "ignore": [ignored]}
    assert read_format(config, TensorFiles.open(Checkpoint.find(str(tmp_path)))).weight(layer, 64, 64) is None


USUAL: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}


@pytest.mark.parametrize("name", ["FP8 static", "W8A8"])
def test_what_files_of_compressed_tensors_leave_out(name: str, tmp_path: Path) -> None:
    """Those of 2024 call compressed weights frozen, and leave out what is usual."""
    values = write_quantised(tmp_path, llama(), ALL_FORMS[name])
    groups = {
        name: {
            part: {field: value for field, value in fields.items() if USUAL.get(field) != value}
            if isinstance(fields, dict)
            else fields
            for part, fields in each.items()
        }
        for name, each in ALL_FORMS[name].config["config_groups"].items()
    }
    config = ALL_FORMS[name].config | {"config_groups": groups, "quantization_status": "frozen"}
    form = read_format(config, TensorFiles.open(Checkpoint.find(str(tmp_path))))
    for layer, expected in values.items():
        found = form.weight(layer, *expected.shape)
        assert isinstance(found, IntegerWeight if name == "W8A8" else FloatWeight)


def refused(place: Path, form: str, change: Callable[[Tensors], None] | None = None, **changed: Any) -> str:
    """Returns the error of loading a changed checkpoint."""
    write_quantised(place, llama(), ALL_FORMS[form], change=change, **changed)
    with pytest.raises(ModelLoadError) as error:
        PackedModel.load(str(place), slots=100)
    return str(error.value)


def group(**changed: Any) -> dict[str, Any]:
    """The groups of W4A16, changed."""
    return {"group_0": {**FORMS["W4A16"].config["config_groups"]["group_0"], **changed}}


def weights(**changed: Any) -> dict[str, Any]:
    return group(weights={**FORMS["W4A16"].config["config_groups"]["group_0"]["weights"], **changed})


@pytest.mark.parametrize(
    ("form", "changed", "named"),
    [
        (
            "AWQ",
            {"quant_method": "hqq"},
            "quant_method is 'hqq', which is not supported; supported are auto-round, awq, ",
        ),
        ("AWQ", {"quant_method": "aqlm"}, "Serve the unquantised checkpoint"),
        ("AWQ", {"quant_method": ["awq"]}, "quant_method is ['awq']"),
        ("AWQ", {"quant_method": None}, "quant_method is None"),
        ("AWQ", {"bits": 3}, "bits is 3"),
        ("AWQ", {"quant_method": "mxfp4"}, "bits is 4"),
        ("AWQ", {"version": "gemv"}, "version is gemv"),
        ("AWQ", {"zero_point": "no"}, "zero_point is 'no'"),
        ("AWQ", {"data_type": "fp"}, "data_type is 'fp'"),
        ("AWQ", {"group_size": "many"}, "group_size is 'many'"),
        ("GPTQ", {"bits": 3}, "bits is 3"),
        ("GPTQ", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ("GPTQ", {"dynamic": {"+:.*": {"bits": 8}}}, "q_proj.qweight has shape [16, 128], not [32, 128]"),
        ("GPTQ", {"dynamic": {"+:.*": {"bits": 2}}}, "dynamic.+:.*.bits is 2"),
        ("GPTQ", {"dynamic": {"+:.*": {"rotation": "hadamard"}}}, "dynamic.+:.*.rotation is 'hadamard'"),
        ("GPTQ", {"dynamic": {"+:(": {}}}, "dynamic.+:( is a pattern that cannot be read"),
        ("FP8", {"activation_scheme": "static"}, "q_proj.activation_scale is missing"),
        ("FP8", {"activation_scheme": "none"}, "activation_scheme is 'none'"),
        ("FP8", {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        ("FP8", {"expert_dtype": "fp4"}, "expert_dtype is 'fp4'"),
        ("FP8", {"weight_block_size": [128]}, "weight_block_size is [128]"),
        ("W4A16", {"format": "marlin-24"}, "format is 'marlin-24'"),
        ("W4A16", {"format": "nvfp4-pack-quantized"}, "group_0.weights.type is int, which format nvfp4-pack-quantized"),
        ("W4A16", {"format": "mxfp6-pack-quantized"}, "format is 'mxfp6-pack-quantized'"),
        ("W4A16", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format is "),
        ("W4A16", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config is "),
        ("W4A16", {"quantization_status": "initialized"}, "quantization_status is 'initialized'"),
        ("W8A8", {"quantization_status": "frozen", "format": "pack-quantized"}, "q_proj.weight_packed is missing"),
        ("W4A16", {"ignore": ["re:("]}, "ignore has a pattern that cannot be read"),
        ("W4A16", {"config_groups": 3}, "config_groups is 3"),
        ("W4A16", {"config_groups": weights(num_bits=2)}, "group_0.weights.num_bits is 2"),
        ("W4A16", {"config_groups": weights(strategy="tensor_group")}, "group_0.weights.strategy is tensor_group"),
        ("W4A16", {"config_groups": weights(type="float")}, "group_0.weights.type is float"),
        ("W4A16", {"config_groups": weights(something=1)}, "group_0.weights.something is 1"),
        ("W4A16", {"config_groups": group(output_activations={"num_bits": 8})}, "group_0.output_activations is "),
        (
            "W4A16",
            {"config_groups": group(input_activations={"num_bits": 8, "dynamic": False})},
            "q_proj.input_scale is missing",
        ),
        ("W4A16", {"config_groups": group(input_activations={"num_bits": 8, "dynamic": 1})}, "dynamic is 1"),
        ("W4A16", {"config_groups": weights(actorder="group")}, "q_proj.weight_g_idx is missing"),
        ("ModelOpt FP8", {"quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'"),
        ("ModelOpt NVFP4", {"group_size": 32}, "group_size is 32"),
        ("ModelOpt FP8", {"quant_algo": "MIXED_PRECISION"}, "quantized_layers is None"),
        (
            "ModelOpt FP8",
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {LAYER: {"quant_algo": "NVFP4_AWQ"}}},
            "quant_algo is 'NVFP4_AWQ'",
        ),
        ("NF4", {"load_in_4bit": False, "_load_in_4bit": False}, "load_in_4bit is False, and load_in_8bit is False"),
        ("NF4", {"bnb_8bit": True}, "bnb_8bit is True"),
        ("quanto", {"weights": "int4"}, "weights is 'int4'"),
        ("BitNet", {"quantization_mode": "online"}, "quantization_mode is 'online'"),
        ("BitNet", {"use_rms_norm": True}, "use_rms_norm is True"),
        ("AutoRound", {"packing_format": "auto_round:marlin"}, "packing_format is 'auto_round:marlin'"),
        ("AutoRound", {"bits": 3}, "bits is 3"),
        ("AutoRound", {"data_type": "mx_fp"}, "data_type is 'mx_fp'"),
        ("AutoRound", {"extra_config": {LAYER: {"bits": 8}}}, f"extra_config.{LAYER}.bits is 8"),
        ("FBGEMM FP8", {"something": 1}, "something is 1"),
    ],
)
def test_configurations_that_are_not_understood(form: str, changed: dict[str, Any], named: str, tmp_path: Path) -> None:
    assert named in refused(tmp_path, form, **changed)


def without(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: void(tensors.pop(f"{LAYER}.{name}"))


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: void(tensors.update({f"{LAYER}.{name}": tensor}))


def void(value: object) -> None:
    """Makes a statement of an expression."""


NAN, INF, E4M3 = float("nan"), float("inf"), torch.float8_e4m3fn
NO_NUMBER = torch.full((128, 128), NAN).to(E4M3)
NF4_STATE, MXFP4 = "weight.quant_state.bitsandbytes__nf4", "MXFP4 of compressed-tensors"


@pytest.mark.parametrize(
    ("form", "change", "named"),
    [
        ("W4A16", without("weight_packed"), "weight_packed is missing"),
        ("W4A16", without("weight_scale"), "weight_scale is missing"),
        ("W4A16", without("weight_shape"), "weight_shape is missing"),
        ("W4A16", put("weight_shape", torch.tensor([128, 64])), "weight_shape is [128, 64], not [128, 128]"),
        ("W4A16", put("weight_scale", torch.ones(128, 3)), "weight_scale has shape [128, 3], not [128, 4]"),
        ("W4A16", put("weight_scale", torch.ones(128, 4).long()), "weight_scale has type int64"),
        ("W4A16", put("weight_g_idx", torch.zeros(128).long()), "weight_g_idx does not have 32 inputs in each of 4"),
        ("W4A16", put("input_scale", torch.ones(1)), "input_scale is not known for LlamaForCausalLM"),
        ("W4A16", put("bias", torch.ones(128)), "bias is not zero"),
        ("W4A16 asymmetric", without("weight_zero_point"), "weight_zero_point is missing"),
        ("W8A8", put("weight", torch.ones(128, 128)), "weight has type float32, not int8"),
        ("AWQ", without("qzeros"), "qzeros is missing"),
        ("AWQ", without("qweight"), "qweight is missing"),
        ("GPTQ", without("qweight"), "qweight is missing"),
        ("GPTQ", put("g_idx", torch.randperm(128)), "g_idx does not have 32 inputs in each of 4 groups"),
        ("GPTQ", put("qweight", torch.ones(3, 128, dtype=torch.int32)), "qweight has shape [3, 128], not [16, 128]"),
        ("FP8", without("weight_scale_inv"), "weight_scale_inv is missing"),
        ("FP8", put("weight", NO_NUMBER), "weight has elements that are no numbers"),
        ("FP8 by block", put("weight", NO_NUMBER), "weight has elements that are no numbers"),
        ("W4A16", put("weight_scale", torch.full((128, 4), INF)), "weight_scale has scales that are no finite numbers"),
        ("AWQ", put("scales", torch.full((4, 128), INF)), "scales has scales that are no finite numbers"),
        ("NVFP4", without("weight_scale"), "weight_scale is missing"),
        ("NVFP4", without("weight_global_scale"), "weight_global_scale is missing"),
        ("NVFP4", put("weight_global_scale", torch.zeros(1)), "weight_global_scale is 0"),
        (
            "NVFP4",
            put("weight_scale", torch.full((128, 8), NAN).to(E4M3)),
            "weight_scale has scales that are no finite",
        ),
        ("NVFP4", put("weight_packed", torch.ones(128, 64).char()), "weight_packed has type int8, not uint8"),
        ("NVFP4", put("input_global_scale", torch.tensor([INF])), "input_global_scale has scales that are no finite"),
        (MXFP4, put("weight_scale", torch.full((128, 4), 255).byte()), "weight_scale has scales that are no finite"),
        (MXFP4, put("weight_scale", torch.ones(128, 4)), "weight_scale has type float32, not uint8 or float8_e8m0fnu"),
        ("MXFP8", put("weight_scale", torch.ones(128, 3).byte()), "weight_scale has shape [128, 3], not [128, 4]"),
        ("FP8 static", without("input_scale"), "input_scale is missing"),
        ("FP8 static", put("input_scale", torch.ones(128)), "input_scale has shape [128], not [1] or []"),
        ("ModelOpt NVFP4", without("weight_scale_2"), "weight_scale_2 is missing"),
        ("ModelOpt NVFP4", put("pre_quant_scale", torch.ones(128)), "pre_quant_scale is not known"),
        ("ModelOpt FP8", put("weight_scale", torch.tensor(NAN)), "weight_scale has scales that are no finite numbers"),
        ("NF4", without(NF4_STATE), f"{NF4_STATE} is missing"),
        ("NF4", put(NF4_STATE, torch.tensor([123]).byte()), f"{NF4_STATE} cannot be read"),
        ("NF4", put(NF4_STATE, torch.tensor([50]).byte()), f"{NF4_STATE} is not an object"),
        ("NF4", put(NF4_STATE, torch.tensor(list(b'{"shape": [128, 128]}'))), f"{NF4_STATE} has type int64"),
        ("NF4", put(NF4_STATE, torch.tensor(list(b'{"blocksize": 0}')).byte()), f"{NF4_STATE} has the blocksize 0"),
        ("NF4", put(NF4_STATE, torch.tensor(list(b'{"blocksize": 64}')).byte()), f"{NF4_STATE} has the shape None"),
        ("NF4", without("weight.quant_map"), "weight.quant_map is missing"),
        ("NF4", without("weight.nested_absmax"), "weight.nested_absmax is missing"),
        ("NF4", put("weight.absmax", torch.ones(3).byte()), "weight.absmax has shape [3], not [256]"),
        ("NF4", put("weight", torch.ones(8191, 1).byte()), "weight has shape [8191, 1], not [8192, 1]"),
        ("FP4", put("weight.absmax", torch.full((256,), NAN)), "weight.absmax has scales that are no finite numbers"),
        ("LLM.int8", without("SCB"), "SCB is missing"),
        ("LLM.int8", put("weight_format", torch.tensor(2).byte()), "weight_format is 2; only 0"),
        ("torchao int8", without("_weight_scale"), "_weight_scale is missing"),
        ("torchao int8", put("_weight_scale", torch.ones(3, 1)), "_weight_scale has shape [3, 1], not [128, 1]"),
        ("torchao int4", without("_weight_zero_point"), "_weight_zero_point is missing"),
        ("quanto", without("weight._scale"), "weight._scale is missing"),
        ("BitNet", put("weight_scale", torch.zeros(1)), "weight_scale is 0"),
        ("BitNet", put("weight", torch.ones(32, 128)), "weight has type float32, not uint8"),
        ("FBGEMM FP8", put("weight_scale", torch.ones(64, 1)), "weight_scale has shape [64, 1]"),
    ],
)
def test_damaged_tensors(form: str, change: Callable[[Tensors], None], named: str, tmp_path: Path) -> None:
    assert f"tensor {LAYER}.{named}" in refused(tmp_path, form, change)


def test_a_group_of_inputs_is_whole_blocks(tmp_path: Path) -> None:
    write_quantised(tmp_path, llama(), gptq(group=16))
    with pytest.raises(ModelLoadError, match=r"q_proj\.qweight has 128 inputs in groups of 16"):
        PackedModel.load(str(tmp_path), slots=100)


def test_a_zero_point_wraps_around(tmp_path: Path) -> None:
    """The first version stores one less, and AutoGPTQ reads the sum modulo the number of integers."""
    change = put("qzeros", torch.full((4, 16), -1, dtype=torch.int32))
    write_quantised(tmp_path, llama(), FORMS["GPTQ"], change=change)
    form = read_format(FORMS["GPTQ"].config, TensorFiles.open(Checkpoint.find(str(tmp_path))))
    found = form.weight(LAYER, 128, 128)
    assert isinstance(found, IntegerWeight)
    assert (found.rows(0, 128).zeros == 0).all()


@pytest.mark.parametrize(
    ("note", "why"),
    [
        (
            {"_type": "Int4TilePackedTo4dTensor"},
            "is a Int4TilePackedTo4dTensor by the file's header; supported are Int8Tensor",
        ),
        ({"_type": "Int8Tensor"}, "has the block_size None in the file's header"),
        ({"_type": "Int8Tensor", "_data": {"block_size": [1, 0]}}, "has the block_size [1, 0] in the file's header"),
        ([1], "is not an object of JSON in the file's header"),
    ],
)
def test_what_a_header_notes(note: Any, why: str, tmp_path: Path) -> None:
    form = ALL_FORMS["torchao int8"]._replace(note=note)
    write_quantised(tmp_path, llama(), form)
    with pytest.raises(ModelLoadError) as error:
        PackedModel.load(str(tmp_path), slots=100)
    assert f"tensor {LAYER}.weight {why}" in str(error.value)
