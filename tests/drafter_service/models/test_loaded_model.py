"""Loading a draft model."""

import shutil
from pathlib import Path

import pytest
import torch

from drafter_service.conversation.handshake import own_hello
from drafter_service.models.loaded_model import NoMemoryError, load_model
from drafter_service.models.loading import load_drafter
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.loading import slots_that_fit
from draftwire_core.engine.model.reading import read_model
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.handshake import CAPABILITY_DISTRIBUTIONS
from tests.harness.models.byte_tokenizers import write_byte_checkpoint
from tests.harness.models.tiny_checkpoint import CONTEXT, VOCABULARY, write_checkpoint


def test_a_model_presents_itself(checkpoint: Path) -> None:
    loaded = load_model(DrafterSettings(model=str(checkpoint), kv_slots=1000, dtype="bfloat16"))
    info = loaded.info
    assert (info.model_id, info.architecture) == (checkpoint.name, "LlamaForCausalLM")
    assert (info.vocab_size, info.context_length) == (VOCABULARY, CONTEXT)
    assert (info.dtype, info.device) == ("bfloat16", "cpu")
    assert list(info.eos_token_ids) == [1]
    assert info.parameters > 10_000
    assert loaded.model.pool.used == 0
    # keys and values, 2 layers, 2 heads of size 8, 2 bytes each; one extra slot for padding
    assert loaded.model.cache.bytes == 1001 * 2 * 2 * 2 * 8 * 2


def test_a_path_stays_private_however_it_is_written(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent.parent))
    model = f"~/{checkpoint.parent.name}/{checkpoint.name}"
    assert load_model(DrafterSettings(model=model, kv_slots=1000)).info.model_id == checkpoint.name


def test_the_kv_cache_may_take_the_memory_that_is_left(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's memory stands in for a GPU's."""
    settings = DrafterSettings(model=str(checkpoint), dtype="bfloat16").model_copy(update={"kv_slots": 0})
    slot = 2 * 2 * 2 * 8 * 2
    for free, slots in ((200 * slot, 200), (10 * slot, None)):
        total = 10 * (free + slots_that_fit._SPARE_BYTES)
        monkeypatch.setattr(slots_that_fit, "memory", lambda _, total=total: (total // 5, total))
        if slots is None:
            with pytest.raises(NoMemoryError, match="65 KV slots do not fit"):
                load_drafter(settings)
        else:
            assert load_model(settings).model.pool.capacity == slots


def test_a_model_in_int8_presents_itself_as_another(checkpoint: Path) -> None:
    settings = DrafterSettings(model=str(checkpoint), kv_slots=1000, dtype="bfloat16", weights="int8")
    plain, loaded = load_model(settings.model_copy(update={"weights": "checkpoint"})), load_model(settings)
    assert (plain.info.dtype, loaded.info.dtype) == ("bfloat16", "int8")
    assert loaded.info.parameters == plain.info.parameters


def test_auto_is_bfloat16_for_integer_weights(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_model, "can_pack", lambda dtype: False)
    monkeypatch.setattr(read_model, "gemm_kind", lambda: 0)
    loaded = load_model(DrafterSettings(model=str(checkpoint), kv_slots=1000, weights="int8"))
    assert (loaded.info.dtype, loaded.model.dtype) == ("int8", torch.bfloat16)


def test_the_first_layers_present_themselves_as_another_model(checkpoint: Path) -> None:
    settings = DrafterSettings(model=str(checkpoint), kv_slots=1000, dtype="bfloat16", layers=1)
    whole, loaded = load_model(settings.model_copy(update={"layers": None})), load_model(settings)
    assert loaded.info.model_id == whole.info.model_id
    assert loaded.info.tokenizer_sha256 == whole.info.tokenizer_sha256
    assert loaded.info.parameters < whole.info.parameters
    assert loaded.model.fingerprint != whole.model.fingerprint
    assert 2 * loaded.model.cache.bytes == whole.model.cache.bytes


def test_all_layers_are_too_many(checkpoint: Path) -> None:
    with pytest.raises(StartupError, match=r"layers: must be from 1 to 1, since the model has 2 layers, got 2"):
        load_drafter(DrafterSettings(model=str(checkpoint), layers=2))


def test_another_padding_of_the_vocabulary_leaves_the_tokenizer_the_same(checkpoint: Path, tmp_path: Path) -> None:
    padded = write_checkpoint(tmp_path / "padded", vocab_size=VOCABULARY + 56)
    other = write_checkpoint(tmp_path / "other", words=99)
    ours, same, another = (Tokenizer.load(str(each)).sha256 for each in (checkpoint, padded, other))
    assert ours == same != another


def test_what_is_no_model_is_named(checkpoint: Path, tmp_path: Path) -> None:
    untokenized = tmp_path / "untokenized"
    shutil.copytree(checkpoint, untokenized, ignore=shutil.ignore_patterns("tokenizer*"))
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "missing", tmp_path / "empty", untokenized, tmp_path / ("long" * 2000)):
        with pytest.raises(StartupError) as caught:
            load_drafter(DrafterSettings(model=str(directory)))
        assert str(directory) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_hub_id_is_for_those_who_are_allowed_to_name_one() -> None:
    with pytest.raises(StartupError, match="models of the hub are not fetched for callers without --allow-hub-models"):
        load_drafter(DrafterSettings(model="lab/draft"))


class TestAnotherTokenizer:
    def test_a_translating_model_has_the_targets_tokens_to_others(self, tmp_path: Path) -> None:
        target = write_byte_checkpoint(tmp_path / "target", "target")
        draft = write_byte_checkpoint(tmp_path / "draft", "draft")
        ours, theirs = Tokenizer.load(str(target)), Tokenizer.load(str(draft))
        settings = DrafterSettings(model=str(draft), kv_slots=1000, target_tokenizer=str(target))
        loaded = load_model(settings)
        assert loaded.token_map is not None
        assert (loaded.info.tokenizer_sha256, loaded.info.draft_tokenizer_sha256) == (ours.sha256, theirs.sha256)
        assert loaded.info.vocab_size == len(ours.vocabulary()) != loaded.model.vocab_size
        assert list(loaded.info.eos_token_ids) == [0]

        with pytest.raises(
            StartupError, match=r"--kv-slots: must exceed 144 to translate .*--max-tree-nodes 64, got 144"
        ):
            load_drafter(settings.model_copy(update={"kv_slots": 144}))
        fewer = settings.model_copy(update={"kv_slots": 144, "max_tree_nodes": 63})
        assert load_model(fewer).token_map is not None

        same = load_model(settings.model_copy(update={"model": str(target)}))
        assert same.token_map is None
        assert (same.info.tokenizer_sha256, same.info.draft_tokenizer_sha256) == (ours.sha256, "")
        for each, offers in ((loaded, False), (same, True)):  # the tokens it proposes are those it draws
            hello = own_hello(settings, each.info, slots=1000)
            assert (CAPABILITY_DISTRIBUTIONS in hello.capabilities) is offers

    def test_what_cannot_be_translated_is_named(self, checkpoint: Path, tmp_path: Path) -> None:
        draft = write_byte_checkpoint(tmp_path / "draft", "draft")
        for settings, named in (
            (DrafterSettings(model=str(draft), target_tokenizer=str(checkpoint)), str(checkpoint)),
            (DrafterSettings(model=str(checkpoint), target_tokenizer=str(draft)), str(checkpoint)),
            (DrafterSettings(model=str(draft), target_tokenizer=str(tmp_path / "missing")), str(tmp_path / "missing")),
        ):
            with pytest.raises(StartupError) as caught:
                load_drafter(settings)
            assert named in str(caught.value)
            assert "\n" not in str(caught.value)
