"""Choosing the number of layers to draft with."""

import pytest
import torch

from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.loading import early_exit_calibration
from draftwire_core.engine.loading.early_exit_calibration import EarlyExit, EarlyExitCalibration, calibrate_early_exit
from draftwire_core.engine.loading.early_exit_calibration import expected_speedup as speedup
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from tests.harness.engine.engines import packed, random_tokens, tiny_model

STEP = StepCost([1, 64], [1.0, 1.0])
PROMPTS = [random_tokens(5, seed=1), [], random_tokens(300, seed=2)]


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer takes a third of a step."""
    monkeypatch.setattr(
        early_exit_calibration,
        "measure_step_cost",
        lambda model: StepCost([1, 64], [len(model.model.model.layers) / 3] * 2),
    )


def model_of(last_layer: float) -> PackedModel:
    """Returns a model whose last layer's contribution is scaled by a factor."""
    model = tiny_model("Llama")
    with torch.no_grad():
        layer = model.model.layers[-1]
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.mul_(last_layer)
    return packed(model, 700)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_layers_that_say_all_agree_always(temperature: float) -> None:
    model = model_of(0.0)
    told: list[tuple[str, float]] = []
    found = calibrate_early_exit(model, PROMPTS, 20, temperature, lambda *part: told.append(part))
    assert told[-1] == (f"exit after {model.layers - 1} of {model.layers} layers", model.layers / (model.layers + 1))
    assert [done for _, done in told] == [part / (model.layers + 1) for part in range(model.layers + 1)]
    assert found.tokens == 40
    assert found.step_seconds == 1.0
    one, two = found.exits
    assert (one.layers, two.layers) == (1, 2)
    assert one.agreement < 0.9
    assert two.agreement == 1.0
    assert two.seconds == pytest.approx(2 / 3)
    assert found.best == two
    assert model.pool.used == 0


def test_where_none_pays_there_is_no_best() -> None:
    found = calibrate_early_exit(model_of(50.0), PROMPTS, 20, 0.0)
    assert [(each.draft_tokens, each.speedup) for each in found.exits] == [(0, 1.0)] * 2
    assert found.best is None


def test_the_best_is_the_fastest() -> None:
    exits = [EarlyExit(layers, 0.5, 0.1, 2, gain) for layers, gain in ((1, 1.2), (2, 1.5), (3, 1.1))]
    assert EarlyExitCalibration(10, 1.0, exits).best == exits[1]


@pytest.mark.parametrize(
    ("agreement", "drafting", "tokens", "gain"),
    [(0.0, 0.1, 0, 1.0), (0.5, 0.6, 0, 1.0), (0.5, 0.25, 1, 1.5 / 1.25), (1.0, 0.5, 16, 17 / 9)],
)
def test_what_drafting_brings(agreement: float, drafting: float, tokens: int, gain: float) -> None:
    assert speedup(agreement, StepCost([1], [drafting]), STEP) == (tokens, pytest.approx(gain))


@pytest.mark.parametrize(
    ("prompts", "tokens", "field"), [([[]], 5, "prompts"), ([[5]], 0, "tokens"), ([[5]], 700, "tokens")]
)
def test_what_cannot_be_measured(prompts: list[list[int]], tokens: int, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        calibrate_early_exit(model_of(1.0), prompts, tokens, 0.0)
    assert caught.value.field == field


def test_a_model_of_one_layer() -> None:
    with pytest.raises(FieldError, match="model: has only one layer"):
        calibrate_early_exit(packed(tiny_model("Llama", num_hidden_layers=1), 100), [[5]], 5, 0.0)
