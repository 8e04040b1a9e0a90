"""The text part of multimodal checkpoints gives the logits of transformers' whole model, whose towers stay on disk."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, core_model_loading
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.reading import text_part
from draftwire_core.engine.model.reading.text_part import TextDecoder, without_timm
from tests.harness.engine.engines import check_against_plain, random_tokens, walk
from tests.harness.models.quantised_checkpoint import FORMS, Tensors, with_values, write_quantised
from tests.harness.models.shrunken import randomised, shrunken_config

KINDS = {
    "aya_vision": TextDecoder,  # its causal model scales logits, the whole model does not
    "gemma3": "Gemma3ForCausalLM",
    "gemma3n": "Gemma3nForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "internvl": "Qwen2ForCausalLM",
    "llama4": "Llama4ForCausalLM",
    "llava": "LlamaForCausalLM",
    "mistral3": "MistralForCausalLM",
    "mllama": TextDecoder,
    "qwen2_5_vl": TextDecoder,
    "qwen2_vl": TextDecoder,
    "qwen3_vl": TextDecoder,
    "qwen3_vl_moe": TextDecoder,
}
"""Model types, with the class that runs the text part."""
FEW = ["aya_vision", "gemma3", "mllama", "qwen2_5_vl"]
"""With logits that are not scaled, a causal model, layers that attend to images, and positions in three parts."""
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


def whole_model(kind: str) -> PreTrainedModel:
    config = shrunken_config(kind)
    torch.manual_seed(0)
    with without_timm():
        return randomised(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)](config))


def load(directory: Path, dtype: str = "float32") -> PackedModel:
    return PackedModel.load(str(directory), slots=400, dtype=dtype)


def check_logits(kind: str, place: Path) -> None:
    whole = whole_model(kind)
    whole.save_pretrained(place)
    ours = load(place)
    assert type(ours.model).__name__ == getattr(KINDS[kind], "__name__", KINDS[kind])
    assert ours.architecture == ours.text_part_of == type(whole).__name__
    assert run_self_test(ours).bit_exact
    assert check_against_plain(whole, walk(ours, [random_tokens(30, seed=1)], [20])) < 1e-4


@pytest.mark.parametrize("kind", FEW)
def test_its_logits_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    check_logits(kind, tmp_path)


def check_towers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the text part has is read and held."""
    whole = whole_model(kind)
    whole.save_pretrained(tmp_path)
    read = core_model_loading._materialize_copy
    count = 0

    def counted(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        nonlocal count
        found = read(tensor, *args, **kwargs)
        count += found.numel()
        return found

    monkeypatch.setattr(core_model_loading, "_materialize_copy", counted)
    ours = load(tmp_path)
    text = {
        id(each): each for part in (whole.get_decoder(), whole.get_output_embeddings()) for each in part.parameters()
    }
    held = sum(each.numel() for each in text.values())
    assert ours.parameters == count == held
    assert held < sum(each.numel() for each in whole.parameters())


def test_towers_are_neither_read_nor_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_towers("gemma3", tmp_path, monkeypatch)


def test_first_layers_alone(tmp_path: Path) -> None:
    whole_model("gemma3").save_pretrained(tmp_path)
    shallow = PackedModel.load(str(tmp_path), slots=400, dtype="float32", layers=2)
    assert shallow.layers == 2
    view = load(tmp_path).first_layers(2)
    texts = [random_tokens(20, seed=1)]
    found, expected = walk(shallow, texts, [10]), walk(view, texts, [10])
    assert all(torch.equal(found[prefix], expected[prefix]) for prefix in found)


def test_models_of_text_are_read_as_before(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(shrunken_config("gemma3_text"))
    model.save_pretrained(tmp_path)
    assert load(tmp_path).text_part_of is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("instructblip", "the text part of InstructBlipForConditionalGeneration does not run alone"),
        ("blip", "BlipForConditionalGeneration has no text part that could run alone"),
        ("pix2struct", "Pix2StructConfig is of an encoder-decoder model"),
    ],
)
def test_what_has_no_text_part_is_refused(kind: str, message: str, tmp_path: Path) -> None:
    whole_model(kind).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path)


def test_other_logits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = whole_model("qwen3_vl")
    whole.save_pretrained(tmp_path)
    forward = TextDecoder.forward
    monkeypatch.setattr(
        TextDecoder, "forward", lambda self, input_ids, **kwargs: forward(self, input_ids + 1, **kwargs)
    )
    with pytest.raises(ModelLoadError, match="alone gives other logits than the whole model does for a text"):
        load(tmp_path)


def check_quantised(kind: str, form: str, stored: dict[str, str], place: Path) -> None:
    """stored: patterns of transformers' names, and what the checkpoint has in their place."""
    whole = whole_model(kind)
    values = write_quantised(place, whole, FORMS[form], change=partial(renamed, stored))
    ours = load(place, "auto")
    assert (ours.text_part_of, ours.weight_type) == (type(whole).__name__, FORMS[form].weight_type)
    assert run_self_test(ours).bit_exact
    # Rounding the rows moves logits; with other weights they differ by more than 2.
    assert check_against_plain(with_values(whole, values), walk(ours, [random_tokens(30, seed=1)], [20])) < 0.5


def renamed(stored: dict[str, str], tensors: Tensors) -> None:
    for name in list(tensors):
        found = name
        for own, theirs in stored.items():
            found = re.sub(own, theirs, found)
        tensors[found] = tensors.pop(name)


@needs_library
@pytest.mark.parametrize(
    ("kind", "form", "stored"),
    [
        ("gemma3", "W4A16", {r"^model\.language_model\.": "language_model.model.", r"^model\.": ""}),
        (
            "mistral3",
            "FP8",
            {r"^model\.language_model\.": "language_model.model.", "^lm_head": "language_model.lm_head"},
        ),
        ("qwen2_5_vl", "AWQ", {r"^model\.visual\.": "visual.", r"^model\.language_model\.": "model."}),
        ("qwen3_vl", "GPTQ", {}),
    ],
)
def test_quantised_ones_are_read_by_all_names_that_text_parts_have_had(
    kind: str, form: str, stored: dict[str, str], tmp_path: Path
) -> None:
    check_quantised(kind, form, stored, tmp_path)


@needs_library
def test_a_text_part_may_say_itself_how_it_is_quantised(tmp_path: Path) -> None:
    write_quantised(tmp_path, whole_model("mistral3"), FORMS["W4A16"])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["quantization_config"] = config.pop("quantization_config")
    path.write_text(json.dumps(config))
    assert load(tmp_path, "auto").weight_type == "int4"


def test_quantised_ones_may_have_no_tensor_of_text_that_is_not_known(tmp_path: Path) -> None:
    more = {"model.visual.more.weight": torch.zeros(1), "model.language_model.more.weight": torch.zeros(1)}
    write_quantised(tmp_path, whole_model("qwen3_vl"), FORMS["FP8"], change=lambda tensors: tensors.update(more))
    with pytest.raises(ModelLoadError, match=r"tensor model\.language_model\.more\.weight is not known for Qwen3VL"):
        load(tmp_path, "auto")


def test_timm_is_left_out_only_while_a_skeleton_is_built() -> None:
    given = text_part.AutoModel.__dict__["from_config"]
    with without_timm():
        assert text_part.AutoModel.__dict__["from_config"] is not given
    assert text_part.AutoModel.__dict__["from_config"] is given


@pytest.mark.slow
class TestAll:
    """The other kinds."""

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FEW])
    def test_its_logits_are_those_of_the_whole_model(self, kind: str, tmp_path: Path) -> None:
        check_logits(kind, tmp_path)

    @needs_library
    @pytest.mark.parametrize("kind", ["aya_vision", "internvl", "llava", "mllama"])
    def test_quantised_ones(self, kind: str, tmp_path: Path) -> None:
        check_quantised(kind, "FP8", {}, tmp_path)

    @pytest.mark.parametrize("kind", ["llama4", "qwen2_5_vl"])
    def test_towers_are_neither_read_nor_held(self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        check_towers(kind, tmp_path, monkeypatch)
