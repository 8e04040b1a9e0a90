"""Drafters of each kind learn the target's output, interrupted training resumes, and the commands report errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from typer.testing import CliRunner

from draftwire.cli.app import app
from draftwire.cli.failure import Failure
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.dflash.dflash_files import load_dflash
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.drafters.medusa_heads import load_heads
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.reading.model_to_train import target_to_train_on
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.cli import frozen_target
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.data.unfinished_training import CheckpointMismatch
from draftwire_core.training.dflash.training import run as run_dflash
from draftwire_core.training.eagle.training import run as run_eagle
from draftwire_core.training.frozen_target.order import DflashOrder, EagleOrder, MedusaOrder, TrainingError
from draftwire_core.training.frozen_target.trainer import Progress
from draftwire_core.training.medusa.training import run as run_medusa
from draftwire_core.training.refresh.head_checkpoint import HeadCheckpoint
from tests.harness.engine.attention_models import ATTENTION_MODELS
from tests.harness.engine.engines import tiny_model
from tests.harness.models.head_trainings import DOCUMENTS, shape_of, trainer_of
from tests.harness.models.shrunken import shrunken_config
from tests.harness.models.tiny_checkpoint import write_tokenizer

LOAD: dict[str, Any] = {"eagle3": load_eagle, "dflash": load_dflash}
RUN: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "eagle3": (EagleOrder, run_eagle, {}),
    "dflash": (DflashOrder, run_dflash, {"block": 3}),
    "medusa": (MedusaOrder, run_medusa, {}),
}
KINDS = pytest.mark.parametrize("kind", RUN)


@pytest.mark.parametrize("draft_vocab", [0, 40])
@pytest.mark.parametrize(("kind", "shape"), [("eagle3", {}), ("dflash", {"block": 4})])
def test_networks_learn_and_the_target_stays_as_it_is(
    kind: str, shape: dict[str, Any], base: PreTrainedModel, tmp_path: Path, draft_vocab: int
) -> None:
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    made = trainer_of(kind, base, tmp_path, steps=30, batch=4, draft_vocab=draft_vocab, **shape)
    reports: list[Progress] = []
    made.train(reports.append, every=10)
    assert [report.step for report in reports] == [10, 20, 30]
    assert len(reports[0].losses) == shape.get("block", 3) - 1
    assert all(late < early for early, late in zip(reports[0].losses, reports[-1].losses, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert all(0 <= share <= 1 for share in made.accuracy(Windows(DOCUMENTS, 32, 4)))
    written = LOAD[kind](tmp_path, shape_of(base), torch.float32)
    for part, its in ((made.network.model, written.model), (made.network.mapping, written.mapping)):
        theirs = its.state_dict()
        own = {name: tensor for name, tensor in part.state_dict().items() if theirs[name].device.type != "meta"}
        assert any("fc." in name or "layers." in name for name in own)
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in own.items())
    assert written.aux_layers == made.network.aux_layers
    assert (written.target_ids is None) == (draft_vocab == 0)
    if written.target_ids is not None:
        frequent = torch.tensor(DOCUMENTS).flatten().bincount().argsort(descending=True, stable=True)[:40]
        assert written.target_ids.tolist() == sorted(frequent.tolist())


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_layers_are_like_the_first_of_a_target_whose_layers_differ(kind: str, tmp_path: Path) -> None:
    """In Gemma 4 heads are longer in some layers, and fewer are of keys."""
    base = tiny_model(
        "Gemma4",
        num_hidden_layers=6,
        layer_types=["sliding_attention", "full_attention"] * 3,
        hidden_size_per_layer_input=0,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        num_kv_shared_layers=0,
    )
    layers = trainer_of(kind, base, tmp_path).network.model.config
    assert (layers.head_dim, layers.num_key_value_heads) == (16, 2)


@pytest.mark.parametrize("kind", LOAD)
def test_a_target_with_several_streams_of_states(kind: str, tmp_path: Path) -> None:
    base = tiny_model("Gemma3n", **ATTENTION_MODELS["shared keys, predicted layers"][1])
    trainer_of(kind, base, tmp_path, steps=1).train(lambda _: None)
    assert LOAD[kind](tmp_path, shape_of(base), torch.float32).config.layers.intermediate_size == 96


@pytest.mark.parametrize("kind", LOAD)
def test_heads_are_rotated_as_a_whole(kind: str, tmp_path: Path) -> None:
    """In GLM 4 half of each is, which a drafter's layers would not do, and other engines that read them would."""
    scaled = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
    base = tiny_model("Glm4", rope_parameters={**scaled, "partial_rotary_factor": 0.5, "mrope_section": [1, 1]})
    trainer_of(kind, base, tmp_path, steps=1).train(lambda _: None)
    assert json.loads((tmp_path / "config.json").read_text())["transformer_layer_config"]["rope_parameters"] == scaled


@pytest.mark.parametrize(
    ("type_of_model", "kind"),
    # transformers has a causal model of the first one's text part, which has another name, and none of the others'.
    [("qwen3_5", "eagle3"), ("mistral3", "dflash"), ("qwen3_vl", "medusa")],
)
def test_drafters_of_multimodal_targets_fit_what_is_served(type_of_model: str, kind: str, tmp_path: Path) -> None:
    config = shrunken_config(type_of_model)
    torch.manual_seed(0)
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)](config).save_pretrained(tmp_path / "target")
    write_tokenizer(tmp_path / "target", 100)
    checkpoint = Checkpoint.find(str(tmp_path / "target"))
    base = target_to_train_on(checkpoint, torch.device("cpu"))
    trainer_of(kind, base, tmp_path / "out", steps=1).train(lambda _: None)
    served = PackedModel.load(checkpoint, slots=100)
    if kind == "medusa":
        assert load_heads(str(tmp_path / "out"), served.dtype).hidden_size == served.hidden_size
        return
    shape = TargetShape(served.layers, served.hidden_size, served.vocab_size, served.architecture)
    assert LOAD[kind](tmp_path / "out", shape, served.dtype).config.target_architectures == (served.architecture,)
    assert HeadCheckpoint.load(str(tmp_path / "out"), None, "cpu").base.dtype == served.dtype


class Stopped(Exception):
    pass


def _stop_after_five(progress: Progress) -> None:
    if progress.step == 5:
        raise Stopped


@KINDS
def test_an_interrupted_training_goes_on_as_if_it_had_not_been(
    kind: str, base: PreTrainedModel, tmp_path: Path
) -> None:
    whole = trainer_of(kind, base, tmp_path / "whole")
    whole.train(lambda _: None)

    with pytest.raises(Stopped):
        trainer_of(kind, base, tmp_path / "parts").train(_stop_after_five, every=1, save_every=2)
    with pytest.raises(CheckpointMismatch, match="other settings, texts or target"):
        trainer_of(kind, base, tmp_path / "parts", DOCUMENTS[1:])
    again = trainer_of(kind, base, tmp_path / "parts")
    assert again.step == 4
    steps: list[int] = []
    again.train(lambda progress: steps.append(progress.step), every=1)
    assert steps == [5, 6]
    parts = again.trained.state_dict()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.trained.state_dict().items())
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


def test_a_training_whose_checkpoint_is_damaged_begins_again(base: PreTrainedModel, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        trainer_of("medusa", base, tmp_path).train(_stop_after_five, every=1, save_every=2)
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[: checkpoint.stat().st_size // 2])
    told: list[str] = []
    again = trainer_of("medusa", base, tmp_path)
    again.run(told.append)
    assert told[0] == "the checkpoint is damaged: training begins again"
    assert again.step == 6


class TestCommand:
    @pytest.mark.parametrize(
        ("kind", "flags", "words"),
        [
            ("eagle3", "--ahead 2", "token 2: "),
            ("dflash", "--block 4 --layers 3 --anchors 4", "token 2 and later ones: too few blocks"),
            ("medusa", "--heads 2", "head 2: "),
        ],
    )
    def test_a_whole_training(
        self, kind: str, flags: str, words: str, target: Path, base: PreTrainedModel, prompts: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        given = ["--model", str(target), "--prompts", str(prompts), "--out", str(out), *flags.split()]
        given += ["--steps", "3", "--batch", "2", "--window", "16", "--tokens", "10", "--threads", "1"]
        result = CliRunner().invoke(app, ["train", kind, *given])
        assert result.exit_code == 0, result.output
        told = iter(result.output.splitlines())  # the stages, in this order
        stages = (
            "loading ",
            "the target continues ",
            "tokens of continuations: ",
            "step 3 of 3: losses ",
            "measuring ",
        )
        assert all(any(line.startswith(stage) for line in told) for stage in stages), result.output
        assert words in result.output
        if kind == "medusa":
            assert len(load_heads(str(out), torch.float32)) == 2
            assert Tokenizer.load(str(out)).sha256 == Tokenizer.load(str(target)).sha256
            return
        assert "token 1: " in result.output
        config = LOAD[kind](out, shape_of(base), torch.float32).config
        if kind == "dflash":
            assert (config.block_size, config.layers.num_hidden_layers) == (4, 3)

    @pytest.mark.parametrize(
        ("kind", "options", "lines", "words"),
        [
            *((kind, {}, '{"prompt": "w1"}', "at least two texts") for kind in RUN),
            *((kind, {}, '{"prompt": "w1"}\n{"prompt": "w2"}', "too short for a window") for kind in RUN),
            *(
                (kind, {"draft_vocab": 10**6}, '{"prompt": "w1 w2 w3 w4 w5 w6"}\n' * 2, "larger than the target")
                for kind in LOAD
            ),
            ("dflash", {"mask_token": 10**6}, '{"prompt": "w1 w2 w3 w4"}\n' * 2, "id must be below 200"),
            ("medusa", {"model": "/nowhere"}, '{"prompt": "w1"}\n' * 2, "no such directory"),
            ("medusa", {}, "{\n", "not valid JSON"),
        ],
    )
    def test_what_cannot_be(
        self, kind: str, options: dict[str, Any], lines: str, words: str, target: Path, tmp_path: Path
    ) -> None:
        prompts = tmp_path / "p.jsonl"
        prompts.write_text(lines)
        order, run, shape = RUN[kind]
        given = {"model": str(target), "continuations": 0, "window": 16, "steps": 1, "device": "cpu"}
        with pytest.raises(TrainingError, match=words):
            run(order(prompts=[prompts], out=tmp_path / "out", **{**given, **shape, **options}), lambda _: None)

    @KINDS
    def test_it_needs_torch(
        self, kind: str, target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("draftwire_core.training.cli.options.NEEDED", ("torch", "no_such_package"))
        with pytest.raises(Failure, match="requires no_such_package: pip install"):
            getattr(frozen_target, kind)(str(target), [prompts], tmp_path / "out")
