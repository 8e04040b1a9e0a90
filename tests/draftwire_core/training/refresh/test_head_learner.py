"""EAGLE-3 and DFlash drafters learn from texts, go back to what they were, and are written as they were found."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from draftwire_core.engine.checkpoint import loose_tensors
from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash.training import DflashTrainer, DflashTraining
from draftwire_core.training.distillation.trainer import DistillationOptions
from draftwire_core.training.eagle.training import EagleTrainer, EagleTraining
from draftwire_core.training.refresh import head_learner
from draftwire_core.training.refresh.head_checkpoint import HeadCheckpoint, is_head
from draftwire_core.training.refresh.head_learner import HeadLearner
from tests.harness.models.dflash_checkpoints import as_original
from tests.harness.models.eagle_checkpoints import change_config
from tests.harness.models.tiny_checkpoint import write_tokenizer

WINDOW = 24
TEXTS = [[3 + (7 * start + place) % 50 for place in range(WINDOW - 4)] for start in range(12)]
TRAINING = DistillationOptions(steps=20, batch_size=4, learning_rate=3e-2)
STEP = DistillationOptions(steps=1, batch_size=4, learning_rate=3e-2)


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are little longer than the texts, not several times as long."""
    monkeypatch.setattr(head_learner, "_WINDOW", WINDOW)


def write_head(kind: str, target: Path, directory: Path, draft_vocab: int = 0) -> Path:
    """Writes an untrained drafter for a target."""
    base = AutoModelForCausalLM.from_pretrained(target)
    windows = Windows(TEXTS, WINDOW, 6)
    if kind == "eagle3":
        training = EagleTraining(ahead=2, draft_vocab=draft_vocab)
        EagleTrainer(base, windows, directory, training, torch.bfloat16).save()
    else:
        blocks = DflashTraining(block=3, layers=1, mask_token=2, draft_vocab=draft_vocab)
        DflashTrainer(base, windows, directory, blocks, torch.bfloat16).save()
    return directory


def learner_of(
    source: Path, out: Path, training: DistillationOptions = TRAINING, target: Path | None = None
) -> HeadLearner:
    head = HeadCheckpoint.load(str(source), str(target) if target else None, "cpu")
    return HeadLearner(str(source), head, training, out)


@pytest.mark.parametrize("draft_vocab", [0, 40])
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_they_learn(kind: str, draft_vocab: int, target: Path, tmp_path: Path) -> None:
    """What is written is read like what was given, and its quality is what was measured."""
    source = write_head(kind, target, tmp_path / "given", draft_vocab)
    learner = learner_of(source, tmp_path)
    assert learner.tokenizer_sha256 == Tokenizer.load(str(target)).sha256
    told: list[str] = []
    assert learner.learn(TEXTS, TEXTS[:4], 0, told.append)
    before, after = (float(part.split()[1]) for part in told[-1].split(": ")[1].split("; "))
    assert 1 <= before < after
    learner.write(tmp_path / "v00001")
    assert json.loads((tmp_path / "v00001/config.json").read_text()) == json.loads((source / "config.json").read_text())
    assert sorted(path.name for path in (tmp_path / "v00001").iterdir()) == ["config.json", "model.safetensors"]
    again = learner_of(tmp_path / "v00001", tmp_path, DistillationOptions(steps=1, batch_size=1, learning_rate=0.0))
    told = []
    again.learn(TEXTS, TEXTS[:4], 0, told.append)
    assert float(told[-1].split(": ")[1].split()[1].rstrip(";")) == pytest.approx(after, abs=0.15), "in bfloat16"


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_one_that_is_no_better_is_forgotten(kind: str, target: Path, tmp_path: Path) -> None:
    """A learning rate of 0 changes nothing, and an equally good drafter is not rolled out."""
    source = write_head(kind, target, tmp_path / "given")
    learner = learner_of(source, tmp_path, DistillationOptions(steps=2, batch_size=4, learning_rate=0.0))
    assert not learner.learn(TEXTS[2:], TEXTS[:2], 0, lambda _: None)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_one_that_loses_its_trial_is_forgotten(kind: str, target: Path, tmp_path: Path) -> None:
    source = write_head(kind, target, tmp_path / "given")
    learner = learner_of(source, tmp_path)
    assert learner.learn(TEXTS[2:], TEXTS[:2], 0, lambda _: None)
    learner.write(tmp_path / "trained")
    learner.go_back()
    learner.write(tmp_path / "back")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("given", "trained", "back")]
    assert weights[0] == weights[2]
    assert weights[0] != weights[1]


def test_the_tokenizer_stays_beside_it(target: Path, tmp_path: Path) -> None:
    source = write_head("dflash", target, tmp_path / "given")
    write_tokenizer(source, 100)
    learner = learner_of(source, tmp_path, STEP)
    learner.learn(TEXTS[2:], TEXTS[:2], 0, lambda _: None)
    (tmp_path / "v00001").mkdir()
    learner.write(tmp_path / "v00001")
    assert Tokenizer.load(str(tmp_path / "v00001")).sha256 == learner.tokenizer_sha256
    assert not (tmp_path / "v00001.new").exists()


def test_one_that_does_not_fit_on_the_disk_leaves_nothing(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    learner = learner_of(write_head("dflash", target, tmp_path / "given"), tmp_path, STEP)
    learner.learn(TEXTS[2:], TEXTS[:2], 0, lambda _: None)
    monkeypatch.setattr(loose_tensors, "save_file", save)
    with pytest.raises(OSError, match=r"model\.safetensors cannot be written: .*No space left on device"):
        learner.write(tmp_path / "v00001")
    assert [each.name for each in tmp_path.iterdir()] == ["given"]


def test_texts_of_no_use(target: Path, tmp_path: Path) -> None:
    learner = learner_of(write_head("dflash", target, tmp_path / "given"), tmp_path)
    assert learner.example([3, 4], [5, 6]) == [3, 4, 5, 6]
    assert learner.example([3, 4], [5]) is None, "too short for a block"
    assert learner.example([3, 4], [5, 6, 200]) is None, "a token that the target here does not have"


def test_the_kind_is_read_from_its_configuration(target: Path, draft: Path, tmp_path: Path) -> None:
    assert is_head(str(write_head("eagle3", target, tmp_path / "eagle")))
    dflash = write_head("dflash", target, tmp_path / "dflash")
    assert is_head(str(dflash))
    assert not is_head(str(draft))
    original = as_original(dflash)
    assert is_head(str(original))
    with pytest.raises(ModelLoadError, match="does not say its target: name it with --target"):
        learner_of(original, tmp_path)
    assert learner_of(original, tmp_path, target=target).source == str(original)


def test_what_cannot_be_refreshed(target: Path, tmp_path: Path) -> None:
    source = write_head("dflash", target, tmp_path / "given")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json cannot be read"):
        is_head(str(tmp_path / "broken"))
    peagle = change_config(write_head("eagle3", target, tmp_path / "peagle"), speculators_model_type="peagle")
    with pytest.raises(ModelLoadError, match="kind 'peagle' cannot be trained"):
        is_head(str(peagle))
    change_config(source, block_size=1)
    with pytest.raises(ModelLoadError, match="block_size must be at least 2"):
        learner_of(source, tmp_path)
