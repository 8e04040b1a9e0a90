"""Training: it learns, and an interruption changes nothing."""

import resource
from pathlib import Path

import pytest
import torch

from draftwire_core.training.data.example import Example
from draftwire_core.training.distillation.acceptance import measure
from draftwire_core.training.distillation.divergence import DIVERGENCES, Divergence
from draftwire_core.training.distillation.draft import Draft
from draftwire_core.training.distillation.trainer import (
    DistillationOptions,
    Trainer,
    TrainingStateError,
    batch_indices,
    learning_rate,
)
from draftwire_core.training.teachers.local_teacher import LocalTeacher
from draftwire_core.training.teachers.teacher import Question


@pytest.fixture(scope="module")
def examples(target: Path) -> list[Example]:
    teacher = LocalTeacher(str(target))
    return teacher.answer([Question([3 + number, 9], 12, 0.0, number) for number in range(6)], 8)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_a_few_examples_are_learned_by_heart(draft: Path, examples: list[Example], kind: Divergence) -> None:
    model = Draft(str(draft)).model
    trainer = Trainer(model, DistillationOptions(40, 3, 1e-2, warmup=5, divergence=kind))
    before = measure(model, examples, batch_size=3)
    losses = []
    while not trainer.done:
        losses.append(trainer.step(examples.__getitem__, len(examples)))
    after = measure(model, examples, batch_size=3)
    # From a distant draft, only forward-kl gets close quickly.
    assert losses[-1] < (0.1 if kind == "forward-kl" else 0.9) * losses[0]
    assert after.coupled > before.coupled + (0.5 if kind == "forward-kl" else 0.05)


def test_a_training_that_was_interrupted_gives_the_same_bits(
    draft: Path, examples: list[Example], tmp_path: Path
) -> None:
    options, facts, state = DistillationOptions(12, 4, 1e-2), {"examples": 6}, tmp_path / "training.pt"
    whole = Trainer(Draft(str(draft)).model, options)
    losses = [whole.step(examples.__getitem__, len(examples)) for _ in range(12)]

    first = Trainer(Draft(str(draft)).model, options)
    parts = [first.step(examples.__getitem__, len(examples)) for _ in range(5)]
    first.save(state, facts)
    second = Trainer(Draft(str(draft)).model, options)
    second.load(state, facts)
    while not second.done:
        parts.append(second.step(examples.__getitem__, len(examples)))
    assert parts == losses
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, second.model.state_dict()[name]), name


def test_another_training_is_not_gone_on_with(draft: Path, tmp_path: Path) -> None:
    state = tmp_path / "training.pt"
    model = Draft(str(draft)).model
    Trainer(model, DistillationOptions(12)).save(state, {"examples": 6})
    with pytest.raises(TrainingStateError, match="steps 12, now 13"):
        Trainer(model, DistillationOptions(13)).load(state, {"examples": 6})
    with pytest.raises(TrainingStateError, match="examples 6, now 7"):
        Trainer(model, DistillationOptions(12)).load(state, {"examples": 7})


def test_all_examples_take_turns() -> None:
    places = [index for step in range(6) for index in batch_indices(step, 5, 10, seed=3)]
    epochs = [places[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_learning_rate_rises_and_falls() -> None:
    options = DistillationOptions(100, learning_rate=1.0, warmup=10)
    rates = [learning_rate(step, options) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert max(rates) == 1.0 and rates[100] == pytest.approx(0.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_full_disk_keeps_the_state_before_and_is_said(draft: Path, tmp_path: Path) -> None:
    trainer, state = Trainer(Draft(str(draft)).model, DistillationOptions()), tmp_path / "training.pt"
    trainer.save(state, {})
    before, (soft, hard) = state.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(OSError, match=r"training\.pt cannot be written, perhaps for lack of room"):
            trainer.save(state, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in tmp_path.iterdir()] == [state.name]
    assert state.read_bytes() == before
