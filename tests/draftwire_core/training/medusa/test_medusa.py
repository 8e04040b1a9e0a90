"""Heads learn the target's output, each for its own place."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.medusa_heads import load_heads
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.frozen_target.trainer import Progress
from tests.harness.models.head_trainings import DOCUMENTS, trainer_of


def test_they_learn_and_the_target_stays_as_it_is(base: PreTrainedModel, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    made = trainer_of("medusa", base, tmp_path, steps=60, batch=4, learning_rate=3e-2)
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


def test_each_head_is_asked_for_the_token_of_its_own_place(base: PreTrainedModel, tmp_path: Path) -> None:
    """The target's next token determines all later ones: each head must be right about its own offset and no other."""
    document = [3 + place % 5 for place in range(64)]
    made = trainer_of("medusa", base, tmp_path, [document], heads=3, steps=60, learning_rate=3e-2)
    made.train(lambda _: None)
    with torch.inference_mode():
        state = base.base_model(torch.tensor([document[:20]])).last_hidden_state[0, -1:]
        guesses = [int(head(state).argmax()) for head in made.heads]
    assert guesses == [document[21], document[22], document[23]]
