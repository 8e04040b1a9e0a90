"""Drafters learn the target's output, interrupted training resumes, and the command line reports errors."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from typer.testing import CliRunner

from draft_training.cli.eagle3 import eagle3
from draft_training.data.texts import Windows
from draft_training.data.unfinished_training import CheckpointMismatch
from draft_training.eagle.run import EagleOrder, run
from draft_training.eagle.training import EagleTrainer, EagleTraining
from draft_training.eagle.unrolled import Unrolled
from draft_training.frozen_target.order import TrainingError
from draft_training.frozen_target.trainer import Progress
from draftwire.cli.app import app
from draftwire.cli.failure import Failure
from speculative_engine.drafters.eagle.eagle_files import load_eagle
from speculative_engine.drafters.features.draft_network import TargetShape
from speculative_engine.model.features.taps import SlotStates, Tap
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import PackedModel
from tests.harness.models.tiny_checkpoint import write_checkpoint

DOCUMENTS = [[3 + (7 * start + place) % 50 for place in range(40)] for start in range(12)]
TRAINING = EagleTraining(ahead=2, steps=6, batch=2, window=32, learning_rate=1e-2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture
def base(checkpoint: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint)
    return model


def trainer(
    base: PreTrainedModel, directory: Path, training: EagleTraining = TRAINING, documents: list[list[int]] = DOCUMENTS
) -> EagleTrainer:
    return EagleTrainer(base, Windows(documents, training.window, 4), directory, training, torch.float32)


def shape_of(base: PreTrainedModel) -> TargetShape:
    config = base.config
    return TargetShape(config.num_hidden_layers, config.hidden_size, config.vocab_size, type(base).__name__)


@pytest.mark.parametrize("draft_vocab", [0, 40])
def test_they_learn_and_the_target_stays_as_it_is(base: PreTrainedModel, tmp_path: Path, draft_vocab: int) -> None:
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    training = EagleTraining(ahead=2, steps=30, batch=4, window=32, learning_rate=1e-2, draft_vocab=draft_vocab)
    made = trainer(base, tmp_path, training)
    reports: list[Progress] = []
    made.train(reports.append, every=10)
    assert [report.step for report in reports] == [10, 20, 30]
    assert all(late < early for early, late in zip(reports[0].losses, reports[-1].losses, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert all(0 <= share <= 1 for share in made.accuracy(Windows(DOCUMENTS, 32, 4)))
    written = load_eagle(tmp_path, shape_of(base), torch.float32)
    assert torch.equal(written.mapping.fc.weight, made.mapping.fc.weight)
    assert written.aux_layers == made.config.aux_layers
    assert (written.target_ids is None) == (draft_vocab == 0)
    if written.target_ids is not None:
        frequent = torch.tensor(DOCUMENTS).flatten().bincount().argsort(descending=True, stable=True)[:40]
        assert written.target_ids.tolist() == sorted(frequent.tolist())


def test_training_computes_what_drafting_does(base: PreTrainedModel, tmp_path: Path) -> None:
    """The unrolled steps' logits are those of packed passes that draft the same tokens."""
    made = trainer(base, tmp_path)
    made.save()
    eagle = load_eagle(tmp_path, shape_of(base), torch.float32)
    torch.manual_seed(1)
    features = torch.randn(1, 9, eagle.config.layers.hidden_size)
    tokens = torch.randint(3, 50, (1, 11))
    with torch.no_grad():
        unrolled = list(Unrolled(made.model, torch.nn.Identity()).steps(features, tokens, 3))
    packed = PackedModel(eagle.model, 32, row_exact=False)
    states = SlotStates(32, packed.hidden_size, torch.float32)
    slots = packed.pool.take(11)
    for first, last in ((0, 9), (9, 10), (10, 11)):
        builder = BatchBuilder()
        rows = [builder.add_row(int(tokens[0, at]), at, int(slots[at]), wants_logits=True) for at in range(first, last)]
        builder.add_lane(slots[:first], rows)
        batch = builder.build(packed.group_size, packed.device)
        batch.features = features[0] if first == 0 else states.read(slots[first - 1 : first])
        batch.taps = [Tap([packed.layers], torch.nn.Identity(), states)]
        logits = packed.forward(batch)
        torch.testing.assert_close(logits[-1], unrolled[last - 9][0, 8], rtol=1e-4, atol=1e-4)


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
    with pytest.raises(CheckpointMismatch, match="other settings, texts or target"):
        trainer(base, tmp_path / "parts", documents=DOCUMENTS[1:])
    again = trainer(base, tmp_path / "parts")
    assert again.step == 4
    again.train(lambda _: None)
    parts = again.model.state_dict()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.model.state_dict().items())
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


class TestCommand:
    @pytest.fixture
    def prompts(self, tmp_path: Path) -> Path:
        path = tmp_path / "prompts.jsonl"
        lines = [json.dumps({"prompt": " ".join(f"w{3 * line + word}" for word in range(8))}) for line in range(11)]
        path.write_text("\n".join(lines))
        return path

    def test_a_whole_training(self, checkpoint: Path, base: PreTrainedModel, prompts: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        flags = ["--ahead", "2", "--steps", "3", "--batch", "2", "--window", "16", "--tokens", "10", "--threads", "1"]
        result = CliRunner().invoke(
            app,
            ["train", "eagle3", "--model", str(checkpoint), "--prompts", str(prompts), "--out", str(out), *flags],
        )
        assert result.exit_code == 0, result.output
        assert "step 3 of 3" in result.output
        assert "token 2: " in result.output
        load_eagle(out, shape_of(base), torch.float32)

    @pytest.mark.parametrize(
        ("draft_vocab", "lines", "words"),
        [
            (0, '{"prompt": "w1"}', "at least two texts"),
            (0, '{"prompt": "w1"}\n{"prompt": "w2"}', "too short for a window"),
            (10**6, '{"prompt": "w1 w2 w3 w4 w5 w6 w7"}\n{"prompt": "w2 w3 w4 w5 w6 w7 w8"}', "larger than the target"),
        ],
    )
    def test_what_cannot_be(self, checkpoint: Path, tmp_path: Path, draft_vocab: int, lines: str, words: str) -> None:
        prompts = tmp_path / "p.jsonl"
        prompts.write_text(lines)
        order = EagleOrder(
            str(checkpoint), (prompts,), tmp_path / "out", continuations=0, window=16, steps=1, draft_vocab=draft_vocab
        )
        with pytest.raises(TrainingError, match=words):
            run(order, lambda _: None)

    def test_layers_to_read(self, checkpoint: Path, base: PreTrainedModel, prompts: Path, tmp_path: Path) -> None:
        last = base.config.num_hidden_layers
        flags = ["--model", str(checkpoint), "--prompts", str(prompts), "--out", str(tmp_path / "out"), "--steps", "1"]
        flags += ["--window", "16", "--continuations", "0", "--batch", "2", "--ahead", "2"]
        result = CliRunner().invoke(app, ["train", "eagle3", *flags, "--aux-layers", str(last)])
        assert result.exit_code == 0, result.output
        assert load_eagle(tmp_path / "out", shape_of(base), torch.float32).aux_layers == (last,)
        for layers in f"{last + 1}", "1,1", "1,0", "-1":
            result = CliRunner().invoke(app, ["train", "eagle3", *flags, "--aux-layers", layers])
            assert "aux_layers must ascend" in str(result.exception)
        result = CliRunner().invoke(app, ["train", "eagle3", *flags, "--aux-layers", "1,,2"])
        assert "--aux-layers must be numbers" in str(result.exception)

    def test_it_needs_torch(
        self, checkpoint: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("draft_training.cli.options.NEEDED", ("torch", "no_such_package"))
        with pytest.raises(Failure, match="requires no_such_package: pip install"):
            eagle3(str(checkpoint), [prompts], tmp_path / "out")
