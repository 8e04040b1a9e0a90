"""Trains a recurrent head within seconds, on texts that a tiny target generated."""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from draftwire_core.training.learning.state_learner import StateLearner
from draftwire_core.training.learning.text_learner import TextTraining
from draftwire_core.training.learning.texts.draft_text import DraftText

QUICK = TextTraining(steps=150, epochs=200, learning_rate=1e-3)


def examples(learner: StateLearner, texts: Sequence[tuple[list[int], list[int]]]) -> list[DraftText]:
    """Returns prompts and outputs as the learner reads them."""
    return [found for prompt, output in texts if (found := learner.example(prompt, output)) is not None]


def trained_head(base: PreTrainedModel, texts: Sequence[tuple[list[int], list[int]]], directory: Path) -> Path:
    """Trains a head until it predicts outputs well; returns its directory."""
    base.save_pretrained(directory / "target")
    learner = StateLearner("", str(directory / "target"), QUICK)
    learned = examples(learner, texts)
    learner.learn(learned, learned, 0, lambda _: None)
    learner.write(directory / "head")
    return directory / "head"
