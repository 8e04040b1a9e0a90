"""Models in GGUF files: they say what their blocks' values say."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.linear.block_linear import StoredEmbedding
from draftwire_core.engine.model.linear.linear_weight import JoinedLinear
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import check_against_plain, random_tokens, run_in_parts, tiny_model, walk
from tests.harness.models.gguf_model import write_gguf

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "BF16", "F16")
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


def mixed(parameter: str) -> str:
    """The types of a file that is mostly Q4_K, as llama.cpp's tools choose them."""
    return "Q6_K" if any(part in parameter for part in ("v_proj", "down_proj", "embed", "lm_head")) else "Q4_K"


def written(
    place: Path, name: str, type_name: str | Callable[[str], str], **sizes: object
) -> tuple[Path, PreTrainedModel]:
    """Writes a tiny model; returns the file and the model with the values of the file's blocks, in float32."""
    model = tiny_model(name, torch.bfloat16, **(SIZES | sizes))
    path = write_gguf(place / "model.gguf", model.config, model.state_dict(), type_name)
    found = {parameter: tensor.dequantised() for parameter, tensor in GgufFile.open(path).tensors.items()}
    model.float().load_state_dict(found, strict=False)
    return path, model


def check_values(name: str, type_name: str, place: Path, length: int, prompts: list[int], **sizes: object) -> None:
    """A model says what the values of its file say, for texts of so many tokens."""
    path, model = written(place, name, type_name, **sizes)
    ours = PackedModel.load(str(path), slots=1000)
    assert ours.weight_type == {"BF16": "bfloat16"}.get(type_name, type_name.lower())
    assert ours.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert ours.kv_dtype == "float16"
    assert run_self_test(ours).bit_exact
    texts = [random_tokens(length, seed=seed) for seed in range(2)]
    # Rounding the rows moves logits; with other weights they differ by more than 2.
    assert check_against_plain(model, walk(ours, texts, prompts)) < 0.8


@needs_library
@pytest.mark.parametrize(
    ("name", "type_name"), [*(("Llama", each) for each in TYPES), ("Qwen2", "Q4_K"), ("Qwen3", "Q8_0")]
)
def test_it_says_what_its_values_say(name: str, type_name: str, tmp_path: Path) -> None:
    check_values(name, type_name, tmp_path, 20, [12, 5], num_hidden_layers=1)


@needs_library
@pytest.mark.parametrize("tied", [False, True])
def test_types_may_differ_in_a_layer(tied: bool, tmp_path: Path) -> None:
    path, model = written(tmp_path, "Llama", mixed, num_hidden_layers=2, tie_word_embeddings=tied)
    ours = PackedModel.load(str(path), slots=1000)
    assert ours.weight_type == "q4_k"
    assert ours.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert isinstance(ours.model.get_input_embeddings(), StoredEmbedding)
    layers = ours.model.model.layers
    assert all(isinstance(layer.project, JoinedLinear) and layer.compiled is not None for layer in layers)
    assert run_self_test(ours).bit_exact
    texts = [random_tokens(25, seed=seed) for seed in range(2)]
    whole = walk(ours, texts, [15, 5])
    assert check_against_plain(model, whole) < 0.8
    run_in_parts(ours)
    in_parts = walk(ours, texts, [15, 5])
    assert all(torch.equal(whole[prefix], in_parts[prefix]) for prefix in whole)


def test_without_the_library_values_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = written(tmp_path, "Llama", mixed, num_hidden_layers=1)
    monkeypatch.setattr("draftwire_core.engine.kernels.library._chosen", ["torch"])
    ours = PackedModel.load(str(path), slots=1000)
    assert check_against_plain(model.bfloat16(), walk(ours, [random_tokens(20)], [12])) < 0.2


def test_files_are_other_models(tmp_path: Path) -> None:
    found = set()
    for type_name in ("Q8_0", "Q4_0", "Q4_K"):
        path, _ = written(tmp_path, "Llama", type_name, num_hidden_layers=1)
        found.add(PackedModel.load(str(path), slots=100).fingerprint)
    path, model = written(tmp_path, "Llama", "Q8_0", num_hidden_layers=1)
    assert PackedModel.load(str(path), slots=100).fingerprint in found
    assert PackedModel(copy.deepcopy(model), 100).fingerprint not in found
    assert len(found) == 3


@needs_library
@pytest.mark.parametrize(("type_name", "kept"), [("BF16", "bfloat16"), ("F16", "f16")])
def test_a_file_with_floats_may_be_quantised_at_load(type_name: str, kept: str, tmp_path: Path) -> None:
    path, _ = written(tmp_path, "Llama", type_name)
    found = [PackedModel.load(str(path), slots=100, weights=each) for each in ("checkpoint", "q4_0")]
    found.append(PackedModel.load(str(path), slots=100, weights="int8", row_exact=False))
    assert [each.weight_type for each in found] == [kept, "q4_0", "int8"]
    products = [each.model.model.layers[0].down.product.weight_type for each in found[:2]]
    assert products == [{"bfloat16": "bf16"}.get(kept, kept), "q4_0"]


def test_the_first_layers_alone(tmp_path: Path) -> None:
    path, _ = written(tmp_path, "Llama", "Q8_0")
    assert PackedModel.load(str(path), slots=100, layers=1, row_exact=False).layers == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "GGUF files need dtype bfloat16, not float32"),
        ({"layers": 9}, "layers"),
    ],
)
def test_what_cannot_be_had(options: dict[str, object], message: str, tmp_path: Path) -> None:
    path, _ = written(tmp_path, "Llama", "Q8_0")
    with pytest.raises(ModelLoadError, match=message):
        PackedModel.load(str(path), slots=100, **options)  # type: ignore[arg-type]


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"x")
    with pytest.raises(ModelLoadError, match=r"expected the directory of a checkpoint, or a \.gguf file"):
        PackedModel.load(str(other), slots=100)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        PackedModel.load(str(broken), slots=100)


@pytest.mark.slow
class TestAll:
    """All architectures with all types, in longer walks."""

    @needs_library
    @pytest.mark.parametrize("type_name", TYPES)
    @pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3"])
    def test_it_says_what_its_values_say(self, name: str, type_name: str, tmp_path: Path) -> None:
        check_values(name, type_name, tmp_path, 40, [20, 5])
