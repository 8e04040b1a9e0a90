"""Types of tensors without a product of their own: they become another type with the same values, or float16."""

import itertools
import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.gguf_header import BLOCK_SIZES, CONVERTED_TYPES
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.linear.group_weight import GroupWeight
from draftwire_core.engine.model.linear.half_weight import HalfWeight
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.reading.gguf_model import StoredWeights
from tests.harness.models.gguf_model import SMALLEST, write_gguf

TINY = 2.0**-24
"""The least number of float16."""
WAYS = {
    **dict.fromkeys(("Q1_0", "Q2_0", "TQ1_0", "TQ2_0"), "q4_0"),
    **{"IQ4_NL": "q8_0", "Q3_K": "q6_k", "IQ3_S": "q6_k", "IQ3_XXS": "q6_k", "IQ1_S": "q6_k", "IQ1_M": "q6_k"},
    **{"IQ4_XS": "int8", "IQ2_XXS": "int8"},
    **dict.fromkeys(("Q2_K", "IQ2_XS", "IQ2_S", "NVFP4"), "f16"),
}
"""What types without a product become."""
WAYS_OF_TINY = WAYS | {"IQ3_XXS": "int8", "IQ1_S": "int8", "IQ1_M": "f16"}
"""What they become if float16 does not have a fraction of the scale."""


def check_way(type_name: str, scale: float, into: str) -> None:
    """Checks a tensor of random bytes and a scale, for types that have it in the same place: it becomes a type with its
    values."""
    _, values, size = next(each for each in BLOCK_SIZES.values() if each.type_name == type_name)
    blocks = np.random.default_rng(1).integers(0, 256, (6, 4 * size), dtype=np.uint8)
    units, half = blocks.reshape(-1, size), np.float16(scale).view(np.uint16)
    if type_name == "IQ1_M":
        units[:, -7::2] = units[:, -7::2] & 15 | (half >> np.arange(0, 16, 4) & 15).astype(np.uint8) << 4
    else:
        units[:, :2] = half.reshape(1).view(np.uint8)
    tensor = GgufTensor(type_name, (6, 4 * values), torch.from_numpy(blocks))
    stored = StoredWeights().of_tensor(tensor)
    assert stored is not None and stored.type_name == into
    expected = tensor.dequantised()
    if isinstance(stored, BlockWeight):
        with np.errstate(all="ignore"):
            again = gguf.quants.dequantize(stored.raw.numpy(), gguf.GGMLQuantizationType[stored.kind.upper()])
        found = torch.from_numpy(again)
    elif isinstance(stored, GroupWeight):
        integers, scales, zeros = stored.rows(0, 6)
        found = ((integers.float() - 128).unflatten(1, (-1, 32)) * scales[..., None]).flatten(1)
        assert (zeros == 128).all()
    else:
        assert isinstance(stored, HalfWeight)
        found, expected = stored.raw, expected.clamp(-65504, 65504).half()
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("type_name", CONVERTED_TYPES)
def test_blocks_without_a_product_keep_their_values(type_name: str) -> None:
    """Any bytes are blocks; those that no other type can hold are rounded to float16."""
    check_way(type_name, 0.37, WAYS[type_name])
    check_way(type_name, 5 * TINY, WAYS_OF_TINY[type_name])
    check_way(type_name, math.inf, WAYS[type_name])


def test_types_that_the_package_gguf_does_not_read() -> None:
    """Values of two blocks; the scales are 0.5 and -2."""
    ones, others = b"\x00\x38" + bytes([0b00000101]) + bytes(15), b"\x00\xc0" + b"\xff" * 16
    [found] = GgufTensor(
        "Q1_0", (1, 256), torch.frombuffer(bytearray(ones + others), dtype=torch.uint8)[None]
    ).dequantised()
    assert found[:4].tolist() == [0.5, -0.5, 0.5, -0.5] and found[4:128].unique().tolist() == [-0.5]
    assert found[128:].unique().tolist() == [-2]
    ones = b"\x00\x38" + bytes([0b11100100]) + bytes(15)
    [found] = GgufTensor(
        "Q2_0", (1, 128), torch.frombuffer(bytearray(ones + others), dtype=torch.uint8)[None]
    ).dequantised()
    assert found[:5].tolist() == [-0.5, 0, 0.5, 1, -0.5] and found[64:].unique().tolist() == [-4]


def test_a_file_whose_blocks_are_converted(tmp_path: Path) -> None:
    config = LlamaConfig(**SMALLEST | {"hidden_size": 256, "intermediate_size": 512})
    torch.manual_seed(1)
    weights = AutoModelForCausalLM.from_config(config).state_dict()
    types = dict(zip(weights, itertools.cycle(["TQ1_0", "TQ2_0"]), strict=False))
    path = write_gguf(tmp_path / "model.gguf", config, weights, types.__getitem__)
    model = PackedModel.load(str(path), slots=64)
    assert run_self_test(model).bit_exact


@pytest.mark.parametrize("layer", ["q_proj", "down_proj"])
def test_a_factor_in_a_tensor_of_its_own(layer: str, tmp_path: Path) -> None:
    """llama.cpp's converter writes one next to each tensor of NVFP4, and one for a layer's inputs."""
    config = LlamaConfig(**SMALLEST)
    torch.manual_seed(0)
    weights = dict(AutoModelForCausalLM.from_config(config).state_dict())
    module = f"model.layers.1.{'self_attn' if layer == 'q_proj' else 'mlp'}.{layer}.weight"
    name = {"q_proj": "blk.1.attn_q", "down_proj": "blk.1.ffn_down"}[layer]
    outputs, inputs = weights.pop(module).shape
    blocks = np.random.default_rng(1).integers(0, 0x77, (outputs, inputs // 64 * 36), dtype=np.uint8)

    def change(writer: gguf.GGUFWriter, factor: float | None = 0.75) -> None:
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
        if factor is not None:
            writer.add_tensor(f"{name}.scale", np.full(1, factor, np.float32))
            writer.add_tensor(f"{name}.input_scale", np.full(1, 0.1, np.float32))

    plain = write_gguf(tmp_path / "plain.gguf", config, weights, change=lambda writer: change(writer, None))
    scaled = write_gguf(tmp_path / "scaled.gguf", config, weights, change=change)
    found, expected = (GgufFile.open(path).tensors[module] for path in (scaled, plain))
    assert torch.equal(found.dequantised(), expected.dequantised() * 0.75)
    stored = StoredWeights().of_parameter(found)
    assert isinstance(stored, HalfWeight)
    assert torch.equal(stored.raw, found.dequantised().clamp(-65504, 65504).half())
    assert run_self_test(PackedModel.load(str(scaled), slots=64)).bit_exact
    data = scaled.read_bytes()
    entry = f"{name}.scale".encode() + (1).to_bytes(4, "little")
    assert data.count(entry + (1).to_bytes(8, "little")) == 1
    scaled.write_bytes(data.replace(entry + (1).to_bytes(8, "little"), entry + (2).to_bytes(8, "little")))
    with pytest.raises(ModelLoadError, match=rf"{name}.scale: has type F32 and shape \[2\], not F32 and \[1\]"):
        GgufFile.open(scaled)


def test_factors_of_experts_are_their_own() -> None:
    blocks = torch.from_numpy(np.random.default_rng(1).integers(0, 0x77, (2, 3, 36), dtype=np.uint8))
    factors = torch.tensor([0.5, 3.0])
    experts = GgufTensor("NVFP4", (2, 3, 64), blocks, factors)
    for index in range(2):
        expected = GgufTensor("NVFP4", (3, 64), blocks[index]).dequantised() * factors[index]
        assert torch.equal(experts.rows_of(index).dequantised(), expected)
        assert torch.equal(experts.dequantised()[index], expected)
