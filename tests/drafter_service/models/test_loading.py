"""What the drafter service is to draft with, from a directory of any kind, damaged ones included."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from drafter_service.conversation.handshake import own_hello
from drafter_service.models.loaded_features import LoadedFeatureNetwork
from drafter_service.models.loading import load_drafter
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint import hub
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.engine.engines import tiny_model
from tests.harness.models.dflash_checkpoints import write_dflash
from tests.harness.models.eagle_checkpoints import change_tensors, write_eagle
from tests.harness.models.tiny_checkpoint import write_checkpoint


@pytest.mark.parametrize("write", [write_checkpoint, write_eagle, write_dflash])
@pytest.mark.parametrize(
    ("field", "value"),
    [("num_hidden_layers", 10**6), ("num_attention_heads", 0), ("hidden_size", 10**12), ("head_dim", "x")],
)
def test_a_damaged_directory_is_refused_in_a_sentence(
    tmp_path: Path, write: Callable[[Path], Path], field: str, value: object
) -> None:
    config = write(tmp_path) / "config.json"
    fields = json.loads(config.read_text())
    fields.get("transformer_layer_config", fields)[field] = value
    config.write_text(json.dumps(fields))
    with pytest.raises(StartupError, match=f"^model {tmp_path}: ") as refusal:
        load_drafter(DrafterSettings(model=str(tmp_path), kv_slots=100))
    assert "\n" not in str(refusal.value)


def test_a_target_that_does_not_lend_is_named_once(tmp_path: Path) -> None:
    draft = change_tensors(write_eagle(tmp_path / "draft"), embed_tokens__weight=None)
    target = tmp_path / "target"
    tiny_model("Llama").save_pretrained(target)
    weights = load_file(target / "model.safetensors")
    del weights["model.embed_tokens.weight"]
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=f"^model {target}: tensor model.embed_tokens.weight is missing$"):
        load_drafter(DrafterSettings(model=str(draft), target=str(target), kv_slots=100))
    with pytest.raises(StartupError, match=rf"^model {draft}: tensor .* is the target's own: name the target with"):
        load_drafter(DrafterSettings(model=str(draft), kv_slots=100))


def test_a_target_of_the_hub_that_the_operator_named_lends_to_models_that_callers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = change_tensors(write_eagle(tmp_path / "draft"), embed_tokens__weight=None)
    target = tmp_path / "target"
    tiny_model("Llama").save_pretrained(target)
    monkeypatch.setattr(hub, "fetch", lambda hub_id, *, weights=True: target / "config.json")
    settings = DrafterSettings(model=str(draft), target="lab/target", kv_slots=100)
    assert not settings.allow_hub_models
    assert isinstance(load_drafter(settings), LoadedFeatureNetwork)


@pytest.mark.parametrize("write", [write_checkpoint, write_eagle, write_dflash])
def test_weights_that_are_cut_off(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    weights = write(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(StartupError, match=r"model\.safetensors is damaged: it ends before tensor"):
        load_drafter(DrafterSettings(model=str(tmp_path), kv_slots=100))


def test_a_text_as_long_as_it_says_fits_next_to_a_block(tmp_path: Path) -> None:
    tiny_model("Llama").save_pretrained(target := tmp_path / "target")
    draft = write_dflash(tmp_path / "draft")
    settings = DrafterSettings(model=str(draft), target=str(target), kv_slots=100, max_tree_nodes=1)
    loaded = load_drafter(settings)
    assert isinstance(loaded, LoadedFeatureNetwork)
    limits = own_hello(settings, loaded.info, slots=100, features=loaded.features).limits
    drafter = loaded.make(TreeGrowth(loaded.cost))
    drafter.open(1, DraftSpec((3, 4), SamplingParams(), 1, max_length=limits.max_sequence_tokens))
    assert drafter.sequences == 1
