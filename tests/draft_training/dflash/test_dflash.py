"""Drafters of blocks learn the target's output, interrupted training resumes, and the command line reports errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from typer.testing import CliRunner

from draft_training.cli.dflash import dflash
from draft_training.data.texts import Windows
from draft_training.data.unfinished_training import CheckpointMismatch
from draft_training.dflash import training
from draft_training.dflash.anchored_blocks import AnchoredBlocks
from draft_training.dflash.initial_network import layers_read, mask_token_of
from draft_training.dflash.run import DflashOrder, run
from draft_training.dflash.training import DflashTrainer, DflashTraining, decay_of
from draft_training.frozen_target.order import TrainingError
from draft_training.frozen_target.trainer import Progress
from draftwire.cli.app import app
from draftwire.cli.failure import Failure
from speculative_engine.drafters.dflash.dflash_files import load_dflash
from speculative_engine.drafters.features.draft_network import TargetShape
from tests.harness.models.tiny_checkpoint import write_checkpoint

DOCUMENTS = [[3 + (7 * start + place) % 50 for place in range(40)] for start in range(12)]
TRAINING = DflashTraining(block=3, anchors=8, steps=6, batch=2, window=32, learning_rate=1e-2, mask_token=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture
def base(checkpoint: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint)
    return model


def trainer(
    base: PreTrainedModel, directory: Path, training: DflashTraining = TRAINING, documents: list[list[int]] = DOCUMENTS
) -> DflashTrainer:
    return DflashTrainer(base, Windows(documents, training.window, 4), directory, training, torch.float32)


def shape_of(base: PreTrainedModel) -> TargetShape:
    config = base.config
    return TargetShape(config.num_hidden_layers, config.hidden_size, config.vocab_size, type(base).__name__)


def equal(part: nn.Module, other: nn.Module) -> bool:
    its = other.state_dict()
    return all(torch.equal(tensor, its[name]) for name, tensor in part.state_dict().items())


@pytest.mark.parametrize("draft_vocab", [0, 40])
def test_they_learn_and_the_target_stays_as_it_is(base: PreTrainedModel, tmp_path: Path, draft_vocab: int) -> None:
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    training = DflashTraining(
        block=4, anchors=8, steps=30, batch=4, window=32, learning_rate=1e-2, draft_vocab=draft_vocab, mask_token=2
    )
    made = trainer(base, tmp_path, training)
    reports: list[Progress] = []
    made.train(reports.append, every=10)
    assert [report.step for report in reports] == [10, 20, 30]
    assert len(reports[0].losses) == 3
    assert all(late < early for early, late in zip(reports[0].losses, reports[-1].losses, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert all(0 <= share <= 1 for share in made.accuracy(Windows(DOCUMENTS, 32, 4)))
    written = load_dflash(tmp_path, shape_of(base), torch.float32)
    assert equal(written.mapping, made.network.mapping)
    ours, theirs = made.network.model.state_dict(), written.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if "layers." in name)
    assert written.config == made.network.config
    # As speculators writes them: the target's embedding is left out, and its whole output head.
    assert written.lacking == {"embed_tokens.weight"} | (set() if draft_vocab else {"lm_head.weight"})
    if written.target_ids is not None:
        frequent = torch.tensor(DOCUMENTS).flatten().bincount().argsort(descending=True, stable=True)[:40]
        assert written.target_ids.tolist() == sorted(frequent.tolist())
        assert torch.equal(written.model.lm_head.weight, base.lm_head.weight[written.target_ids])


def test_the_share_of_right_guesses_is_counted_where_those_before_are_the_text(
    base: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block, as drafting would, against the counts over whole windows."""
    made = trainer(base, tmp_path, DflashTraining(block=4, anchors=5, steps=40, batch=4, window=32, learning_rate=1e-2))
    made.train(lambda _: None)
    made.network.model.eval()
    windows = Windows([document[:13] for document in DOCUMENTS[:3]], 16, 4)
    right, asked = np.zeros(3), np.zeros(3)
    for document in DOCUMENTS[:3]:
        text = torch.tensor([document[:13]])
        with torch.no_grad():
            out = base(text, output_hidden_states=True)
            # The library's last state has been through the last norm; the drafter reads it before.
            states = dict(enumerate(out.hidden_states))
            angles = base.model.rotary_emb(states[1], torch.arange(13).unsqueeze(0))
            states[2] = base.model.layers[1](states[1], position_embeddings=angles)
            features = made.network.mapping(torch.cat([states[each] for each in made.network.aux_layers], dim=-1))
        for anchor in range(13):
            with torch.no_grad():
                blocks = AnchoredBlocks(made.network.config, made.network.model)
                place = torch.tensor([[anchor]])
                guesses = blocks.guess(features[:, :anchor], text[:, anchor : anchor + 1], place)[0, 0].argmax(-1)
            for ahead in range(3):
                if anchor + ahead > 12 or any(guesses[k] != text[0, anchor + 1 + k] for k in range(ahead)):
                    break
                asked[ahead] += 1
                right[ahead] += int(guesses[ahead] == out.logits[0, anchor + ahead].argmax())
    shares = right / np.maximum(asked, 1)
    assert made.accuracy(windows) == pytest.approx(shares[:1]), "too few blocks get beyond the first place"
    monkeypatch.setattr(training, "_FEWEST_SAMPLES", 0)
    assert made.accuracy(windows) == pytest.approx(shares)
    assert right.sum() > 0


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
    parts = again.network.model.state_dict()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.network.model.state_dict().items())
    assert equal(whole.network.mapping, again.network.mapping)
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


def test_texts_shorter_than_the_anchors_of_a_step(base: PreTrainedModel, tmp_path: Path) -> None:
    made = trainer(base, tmp_path, documents=[[5, 6, 7, 8], [9, 10, 11, 12]])
    losses: list[float] = []
    made.train(lambda progress: losses.extend(progress.losses), every=1)
    assert len(losses) == 12
    assert np.isfinite(losses).all()


def test_weights_of_places_fall_as_in_the_paper() -> None:
    assert decay_of(8) == pytest.approx(np.exp(-1 / 4))
    assert decay_of(16) > decay_of(10) > decay_of(8)


def test_the_layers_that_are_read() -> None:
    assert layers_read(36) == (2, 10, 18, 26, 34)
    assert layers_read(7) == (2, 3, 4, 5)
    assert layers_read(6) == (2, 3, 4)
    assert layers_read(5) == (1, 2, 5)
    assert layers_read(2) == (1, 2)
    assert layers_read(1) == (0, 1)


def test_the_token_that_stands_for_one_to_be_guessed(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert mask_token_of(tokenizer, 200) == len(tokenizer), "an id that stands for no token"
    tokenizer.pad_token = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="name one by --mask-token"):
        mask_token_of(tokenizer, len(tokenizer))
    tokenizer.eos_token = "</s>"
    assert mask_token_of(tokenizer, len(tokenizer)) == 1
    tokenizer.pad_token = "<s>"
    assert mask_token_of(tokenizer, len(tokenizer)) == 0
    tokenizer.mask_token = "<unk>"
    assert mask_token_of(tokenizer, 200) == 2


class TestCommand:
    @pytest.fixture
    def prompts(self, tmp_path: Path) -> Path:
        path = tmp_path / "prompts.jsonl"
        lines = [json.dumps({"prompt": " ".join(f"w{3 * line + word}" for word in range(8))}) for line in range(11)]
        path.write_text("\n".join(lines))
        return path

    def test_a_whole_training(self, checkpoint: Path, base: PreTrainedModel, prompts: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        flags = ["--block", "4", "--layers", "3", "--anchors", "4", "--steps", "3", "--batch", "2", "--window", "16"]
        flags += ["--tokens", "10", "--threads", "1"]
        result = CliRunner().invoke(
            app,
            ["train", "dflash", "--model", str(checkpoint), "--prompts", str(prompts), "--out", str(out), *flags],
        )
        assert result.exit_code == 0, result.output
        assert "step 3 of 3" in result.output
        assert "token 1: " in result.output
        assert "token 2 and later ones: too few blocks" in result.output
        written = load_dflash(out, shape_of(base), torch.float32)
        assert written.config.block_size == 4
        assert written.config.layers.num_hidden_layers == 3
        fields = json.loads((out / "config.json").read_text())
        assert fields["speculators_config"]["verifier"] == {
            "name_or_path": str(checkpoint), "architectures": ["LlamaForCausalLM"],
        }  # fmt: skip
        assert fields["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3

    @pytest.mark.parametrize(
        ("options", "lines", "words"),
        [
            ({}, '{"prompt": "w1"}', "at least two texts"),
            ({}, '{"prompt": "w1"}\n{"prompt": "w2"}', "too short for a window"),
            ({"draft_vocab": 10**6}, '{"prompt": "w1 w2 w3 w4"}\n{"prompt": "w2 w3 w4 w5"}', "larger than the target"),
            ({"mask_token": 10**6}, '{"prompt": "w1 w2 w3 w4"}\n{"prompt": "w2 w3 w4 w5"}', "id must be below 200"),
        ],
    )
    def test_what_cannot_be(
        self, checkpoint: Path, tmp_path: Path, options: dict[str, Any], lines: str, words: str
    ) -> None:
        prompts = tmp_path / "p.jsonl"
        prompts.write_text(lines)
        order = DflashOrder(
            str(checkpoint), (prompts,), tmp_path / "out", continuations=0, window=16, steps=1, block=3, **options
        )
        with pytest.raises(TrainingError, match=words):
            run(order, lambda _: None)

    def test_it_needs_torch(
        self, checkpoint: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("draft_training.cli.options.NEEDED", ("torch", "no_such_package"))
        with pytest.raises(Failure, match="requires no_such_package: pip install"):
            dflash(str(checkpoint), [prompts], tmp_path / "out")
