"""Heads learn the target's output, interrupted training resumes, and the command line reports errors."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from typer.testing import CliRunner

from draft_training.cli.medusa import medusa
from draft_training.data.texts import Windows, continued, read_texts
from draft_training.data.unfinished_training import CheckpointMismatch
from draft_training.frozen_target.order import TrainingError
from draft_training.frozen_target.trainer import Progress
from draft_training.medusa.run import MedusaOrder, run
from draft_training.medusa.training import MedusaTrainer, MedusaTraining
from draftwire.cli.app import app
from draftwire.cli.failure import Failure
from speculative_engine.drafters.medusa_heads import load_heads
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.text.tokenizer import Tokenizer
from tests.harness.models.tiny_checkpoint import write_checkpoint

DOCUMENTS = [[3 + (7 * start + place) % 50 for place in range(40)] for start in range(12)]
TRAINING = MedusaTraining(heads=2, steps=6, batch=2, window=32, learning_rate=1e-2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture
def base(checkpoint: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint)
    return model


def trainer(
    base: PreTrainedModel, directory: Path, training: MedusaTraining = TRAINING, documents: list[list[int]] = DOCUMENTS
) -> MedusaTrainer:
    return MedusaTrainer(base, Windows(documents, training.window, 4), directory, training, torch.float32)


def test_they_learn_and_the_target_stays_as_it_is(base: PreTrainedModel, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    training = MedusaTraining(heads=2, steps=60, batch=4, window=32, learning_rate=3e-2)
    made = trainer(base, tmp_path, training)
    untrained = made.accuracy(Windows(DOCUMENTS, 32, 4))
    reports: list[Progress] = []
    made.train(reports.append, every=20)
    trained = made.accuracy(Windows(DOCUMENTS, 32, 4))
    assert [report.step for report in reports] == [20, 40, 60]
    assert all(late < early for early, late in zip(reports[0].losses, reports[-1].losses, strict=True))
    assert all(after.top1 > before.top1 + 0.3 for before, after in zip(untrained, trained, strict=True))
    assert all(each.top5 >= each.top1 for each in trained)
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    written = load_heads(str(tmp_path), torch.float32).state_dict()
    assert all(torch.equal(tensor, written[name]) for name, tensor in made.heads.state_dict().items())


class Stopped(Exception):
    pass


def test_an_interrupted_training_goes_on_as_if_it_had_not_been(base: PreTrainedModel, tmp_path: Path) -> None:
    whole = trainer(base, tmp_path / "whole")
    whole.train(lambda _: None)

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise Stopped

    with pytest.raises(Stopped):
        trainer(base, tmp_path / "parts").train(stop, every=1, save_every=2)
    again = trainer(base, tmp_path / "parts")
    assert again.step == 4
    steps: list[int] = []
    again.train(lambda progress: steps.append(progress.step), every=1)
    assert steps == [5, 6]
    parts = again.heads.state_dict()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.heads.state_dict().items())
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


def test_the_checkpoint_of_another_training_is_refused(base: PreTrainedModel, tmp_path: Path) -> None:
    def stop(_: Progress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        trainer(base, tmp_path).train(stop, every=5, save_every=1)
    with pytest.raises(CheckpointMismatch, match="other settings, texts or target"):
        trainer(base, tmp_path, documents=DOCUMENTS[1:])
    assert trainer(base, tmp_path).step == 4


def test_each_head_is_asked_for_the_token_of_its_own_place(base: PreTrainedModel, tmp_path: Path) -> None:
    """The target's next token determines all later ones: each head must be right about its own offset and no other."""
    document = [3 + place % 5 for place in range(64)]
    training = MedusaTraining(heads=3, steps=60, batch=2, window=32, learning_rate=3e-2)
    made = trainer(base, tmp_path, training, [document])
    made.train(lambda _: None)
    with torch.inference_mode():
        state = base.base_model(torch.tensor([document[:20]])).last_hidden_state[0, -1:]
        guesses = [int(head(state).argmax()) for head in made.heads]
    assert guesses == [document[21], document[22], document[23]]


class TestTexts:
    def test_files(self, tmp_path: Path) -> None:
        lines = tmp_path / "a.jsonl"
        lines.write_text('{"prompt": "one"}\n{"text": "two"}\n')
        text = tmp_path / "b.txt"
        text.write_text("three\n")
        assert read_texts([lines, text]) == ["one", "two", "three\n"]

    @pytest.mark.parametrize("line", ["{", "[]", '{"prompt": 3}', '{"id": "x"}'])
    def test_a_bad_line_is_named(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text(f'{{"prompt": "one"}}\n{line}\n')
        with pytest.raises(ValueError, match=r"a\.jsonl, line 2: "):
            read_texts([path])

    def test_the_target_continues_them(self, checkpoint: Path) -> None:
        model = PackedModel.load(str(checkpoint), slots=1000, dtype="float32")
        tokenizer = Tokenizer.load(str(checkpoint))
        options = {"tokens": 10, "temperature": 0.8, "seed": 1}
        texts = ["w1 w2 w3", "w4"]
        alone = continued(model, tokenizer, texts, rounds=0, **options)
        documents = continued(model, tokenizer, texts, rounds=2, **options)
        assert [document[: len(text)] for document, text in zip(documents, alone * 2, strict=True)] == alone * 2
        assert all(len(document) > len(text) for document, text in zip(documents, alone * 2, strict=True))
        assert documents[0] != documents[2], "each round draws anew"
        assert documents == continued(model, tokenizer, texts, rounds=2, **options)

    def test_windows(self) -> None:
        windows = Windows([[1, 2, 3, 4, 5], [6], [7, 8]], 3, 2)
        assert windows.labels.tolist() == [[1, 2, 3], [4, 5, -100], [7, 8, -100]]
        with pytest.raises(ValueError, match="too short for a window of 4 tokens"):
            Windows([[1, 2]], 8, 4)

    def test_each_window_comes_once_a_round(self) -> None:
        windows = Windows([[index] * 2 for index in range(7)], 2, 2)
        seen = [int(row[0]) for step in range(7) for row in windows.batch(step, 2, seed=3)]
        assert sorted(seen[:7]) == sorted(seen[7:]) == list(range(7))
        assert seen[:7] != seen[7:]


class TestCommand:
    @pytest.fixture
    def prompts(self, tmp_path: Path) -> Path:
        path = tmp_path / "prompts.jsonl"
        lines = [json.dumps({"prompt": " ".join(f"w{3 * line + word}" for word in range(8))}) for line in range(11)]
        path.write_text("\n".join(lines))
        return path

    def test_a_whole_training(self, checkpoint: Path, prompts: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        flags = ["--heads", "2", "--steps", "3", "--batch", "2", "--window", "16", "--tokens", "10", "--threads", "1"]
        result = CliRunner().invoke(
            app,
            ["train", "medusa", "--model", str(checkpoint), "--prompts", str(prompts), "--out", str(out), *flags],
        )
        assert result.exit_code == 0, result.output
        assert "step 3 of 3" in result.output
        assert "head 2: " in result.output
        assert len(load_heads(str(out), torch.float32)) == 2
        assert Tokenizer.load(str(out)).sha256 == Tokenizer.load(str(checkpoint)).sha256

    @pytest.mark.parametrize(
        ("model", "lines", "words"),
        [
            ("/nowhere", '{"prompt": "w1"}\n{"prompt": "w2"}', "no such directory"),
            (None, '{"prompt": "w1"}', "at least two texts"),
            (None, "{\n", "not valid JSON"),
            (None, '{"prompt": "w1"}\n{"prompt": "w2"}', "too short for a window"),
        ],
    )
    def test_what_cannot_be(self, checkpoint: Path, tmp_path: Path, model: str | None, lines: str, words: str) -> None:
        prompts = tmp_path / "p.jsonl"
        prompts.write_text(lines)
        order = MedusaOrder(model or str(checkpoint), (prompts,), tmp_path / "out", continuations=0, window=16, steps=1)
        with pytest.raises(TrainingError, match=words):
            run(order, lambda _: None)

    def test_it_needs_torch(
        self, checkpoint: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("draft_training.cli.options.NEEDED", ("torch", "no_such_package"))
        with pytest.raises(Failure, match="requires no_such_package: pip install"):
            medusa(str(checkpoint), [prompts], tmp_path / "out")
