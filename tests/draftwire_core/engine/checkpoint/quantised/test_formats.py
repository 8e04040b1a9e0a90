"""Quantised checkpoints are read value for value, and what is not supported is refused by its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.quantised.formats import read_format
from draftwire_core.engine.checkpoint.quantised.stored_weight import IntegerWeight
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import tiny_model
from tests.harness.models.quantised_checkpoint import FORMS, Tensors, gptq, write_quantised

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}
LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("name", FORMS)
def test_values_are_those_that_its_tool_reads(name: str, tmp_path: Path) -> None:
    values = write_quantised(tmp_path, tiny_model("Llama", **SIZES), FORMS[name])
    form = read_format(FORMS[name].config, TensorFiles.open(Checkpoint.find(str(tmp_path))))
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
            else:
                floats, scales = found.rows(first, last)
                values_of_rows = floats.float() * scales.repeat_interleave(found.group, 1)[:, : found.inputs]
            assert torch.equal(values_of_rows, expected[first:last])


def refused(place: Path, form: str, change: Callable[[Tensors], None] | None = None, **changed: Any) -> str:
    """Returns the error of loading a changed checkpoint."""
    write_quantised(place, tiny_model("Llama", **SIZES), FORMS[form], change=change, **changed)
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
        ("AWQ", {"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
        ("AWQ", {"quant_method": None}, "quant_method is None"),
        ("AWQ", {"bits": 3}, "bits is 3"),
        ("AWQ", {"quant_method": "mxfp4"}, "bits is 4"),
        ("AWQ", {"version": "gemv"}, "version is gemv"),
        ("AWQ", {"zero_point": False}, "zero_point is False"),
        ("AWQ", {"group_size": "many"}, "group_size is 'many'"),
        ("GPTQ", {"bits": 3}, "bits is 3"),
        ("GPTQ", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ("GPTQ", {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic is "),
        ("FP8", {"activation_scheme": "static"}, "activation_scheme is 'static'"),
        ("FP8", {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        ("FP8", {"weight_block_size": [128]}, "weight_block_size is [128]"),
        ("W4A16", {"format": "marlin-24"}, "format is 'marlin-24'"),
        ("W4A16", {"format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized'"),
        ("W4A16", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format is "),
        ("W4A16", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config is "),
        ("W4A16", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is "),
        ("W4A16", {"quantization_status": "frozen"}, "quantization_status is 'frozen'"),
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
            "group_0.input_activations.dynamic is False",
        ),
        ("W4A16", {"config_groups": weights(actorder="group")}, "q_proj.weight_g_idx is missing"),
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


NO_NUMBER = torch.full((128, 128), float("nan")).to(torch.float8_e4m3fn)


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
    ],
)
def test_damaged_tensors(form: str, change: Callable[[Tensors], None], named: str, tmp_path: Path) -> None:
    assert f"tensor {LAYER}.{named}" in refused(tmp_path, form, change)


def test_a_group_of_inputs_is_whole_blocks(tmp_path: Path) -> None:
    write_quantised(tmp_path, tiny_model("Llama", **SIZES), gptq(group=16))
    with pytest.raises(ModelLoadError, match=r"q_proj\.qweight has 128 inputs in groups of 16"):
        PackedModel.load(str(tmp_path), slots=100)


def test_a_zero_point_wraps_around(tmp_path: Path) -> None:
    """The first version stores one less, and AutoGPTQ reads the sum modulo the number of integers."""
    change = put("qzeros", torch.full((4, 16), -1, dtype=torch.int32))
    write_quantised(tmp_path, tiny_model("Llama", **SIZES), FORMS["GPTQ"], change=change)
    form = read_format(FORMS["GPTQ"].config, TensorFiles.open(Checkpoint.find(str(tmp_path))))
    found = form.weight(LAYER, 128, 128)
    assert isinstance(found, IntegerWeight)
    assert (found.rows(0, 128).zeros == 0).all()
