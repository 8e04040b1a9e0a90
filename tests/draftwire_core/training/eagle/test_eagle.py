"""The unrolled steps of the training are those of drafting, and the layers to read can be chosen."""

from pathlib import Path

import torch
from transformers import PreTrainedModel
from typer.testing import CliRunner

from draftwire.cli.app import app
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.training.eagle.unrolled import Unrolled
from tests.harness.models.head_trainings import shape_of, trainer_of


def test_training_computes_what_drafting_does(base: PreTrainedModel, tmp_path: Path) -> None:
    """The unrolled steps' logits are those of packed passes that draft the same tokens."""
    made = trainer_of("eagle3", base, tmp_path)
    made.save()
    eagle = load_eagle(tmp_path, shape_of(base), torch.float32)
    torch.manual_seed(1)
    features = torch.randn(1, 9, eagle.config.layers.hidden_size)
    tokens = torch.randint(3, 50, (1, 11))
    with torch.no_grad():
        unrolled = list(Unrolled(made.network.model, torch.nn.Identity()).steps(features, tokens, 3))
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


def test_layers_to_read(target: Path, base: PreTrainedModel, prompts: Path, tmp_path: Path) -> None:
    last = base.config.num_hidden_layers
    flags = ["--model", str(target), "--prompts", str(prompts), "--out", str(tmp_path / "out"), "--steps", "1"]
    flags += ["--window", "16", "--continuations", "0", "--batch", "2", "--ahead", "2"]
    result = CliRunner().invoke(app, ["train", "eagle3", *flags, "--aux-layers", str(last)])
    assert result.exit_code == 0, result.output
    assert load_eagle(tmp_path / "out", shape_of(base), torch.float32).aux_layers == (last,)
    for layers in f"{last + 1}", "1,1", "1,0", "-1":
        result = CliRunner().invoke(app, ["train", "eagle3", *flags, "--aux-layers", layers])
        assert "aux_layers must ascend" in str(result.exception)
    result = CliRunner().invoke(app, ["train", "eagle3", *flags, "--aux-layers", "1,,2"])
    assert "--aux-layers must be numbers" in str(result.exception)
