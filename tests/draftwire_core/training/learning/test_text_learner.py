"""A draft model that learns texts, with the target's tokenizer and with another one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.model.reading.model_to_train import model_to_train
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.distillation.draft import Draft
from draftwire_core.training.learning.text_learner import TextLearner, TextTraining, agreement, batches
from draftwire_core.training.learning.texts.draft_text import DraftText
from draftwire_core.training.learning.texts.top_tokens import TopTokens
from tests.harness.checkout import MODELS
from tests.harness.models.gguf_model import write_checkpoint_as_gguf

QUICK = TextTraining(steps=12, epochs=100, step_tokens=64, window=32, learning_rate=3e-3)
PROMPT, OUTPUT = "def read_config(path):\n", "    return self.__class__(other for other in path)\n"


@pytest.fixture(scope="module")
def target() -> Tokenizer:
    return Tokenizer.load(str(MODELS / "target"))


def texts(learner: TextLearner, target: Tokenizer) -> list[DraftText]:
    found = learner.example(target.encode(PROMPT), target.encode(OUTPUT, add_special_tokens=False))
    assert found is not None
    return [found]


@pytest.mark.parametrize("draft", ["draft-untrained", "draft-other"])
def test_it_learns_and_goes_on_from_what_it_wrote(draft: str, target: Tokenizer, tmp_path: Path) -> None:
    learner = TextLearner(str(MODELS / draft), target, QUICK)
    learned = texts(learner, target)
    told: list[str] = []
    assert learner.learn(learned, learned, 0, told.append)
    assert learner.after > learner.before
    assert learner.measured == learned[0].positions
    assert told[-1].startswith("step 12 of 12, cross-entropy")
    learner.write(tmp_path / "v00001")
    assert learner.source == str(tmp_path / "v00001")
    again = TextLearner(learner.source, target, QUICK)
    assert [each.tokens.tolist() for each in texts(again, target)] == [each.tokens.tolist() for each in learned]
    model = Draft(learner.source).model
    windows = [window for each in learned for window in each.windows(32, 1 << 20)]
    assert agreement(model, windows, 32) == pytest.approx(learner.after, abs=0.1), "as it was rounded"
    learner.go_back()
    assert learner.source == str(MODELS / draft)


def test_it_learns_the_targets_distribution_where_it_is_known(draft: Path, tmp_path: Path) -> None:
    """The text's own tokens are never likely: they were drawn. The last position has no distribution."""
    prompt, output = [5, 6], [20, 21, 22, 23, 24, 25, 26, 27]
    top = TopTokens(np.array([[40, 41], [50, 51]] * 4, np.int32), np.log([[0.75, 0.25]] * 8).astype(np.float16))
    top.log_probs[-1] = -np.inf
    learner = TextLearner(str(draft), None, TextTraining(steps=120, epochs=200, learning_rate=1e-2, probabilities=True))
    learned = learner.example(prompt, output, top)
    assert learned is not None
    told: list[str] = []
    assert learner.learn([learned], [learned], 0, told.append)
    assert learner.after == 1 / 8, "the last token alone is the likeliest"
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) * 7 / 8
    assert float(told[-1].rpartition(" (")[0].rpartition(" ")[2]) == pytest.approx(entropy, abs=0.03)
    learner.write(tmp_path / "v00001")
    model = Draft(learner.source).model
    with torch.no_grad():
        found = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, 1:].softmax(1)
    assert found[0, [40, 41]].tolist() == pytest.approx([0.75, 0.25], abs=0.05)
    assert found[1, [50, 51]].tolist() == pytest.approx([0.75, 0.25], abs=0.05)


def test_what_is_no_better_is_forgotten(target: Tokenizer) -> None:
    learner = TextLearner(str(MODELS / "draft-untrained"), None, TextTraining(steps=1, learning_rate=0.0))
    learned = texts(learner, target)
    assert not learner.learn(learned, learned, 0, lambda _: None)
    assert learner.after == learner.before
    with pytest.raises(AssertionError):
        learner.write(Path("nowhere"))


def test_the_training_ends_with_its_time(target: Tokenizer) -> None:
    learner = TextLearner(str(MODELS / "draft-untrained"), None, TextTraining(seconds=1e-9))
    learned = texts(learner, target)
    assert not learner.learn(learned, learned, 0, pytest.fail)


def test_tokens_beyond_the_vocabulary_are_left_out(draft: Path) -> None:
    """A client may send any that the target has."""
    learner = TextLearner(str(draft), None, QUICK)
    found = [learner.example(prompt, [3, 4, 5]) for prompt in ([1, 2], [200, 2])]
    good, bad = (each for each in found if each is not None)
    assert learner.learn([bad, good], [good, bad], 0, lambda _: None)
    assert learner.measured == good.positions
    told: list[str] = []
    assert not learner.learn([good], [bad], 0, told.append)
    assert told == [f"the texts have nothing but tokens beyond the 200 of {draft}"]


def test_padding_changes_nothing(draft: Path) -> None:
    windows = [
        window
        for length in (3, 9, 30, 5)
        for window in DraftText(torch.arange(3, 3 + length).int().numpy(), 1, TopTokens.none(length - 1)).windows(
            32, 1 << 20
        )
    ]
    model = Draft(str(draft)).model
    alone = [agreement(model, [window], 32) * window.positions for window in windows]
    together = agreement(model, windows, 32) * sum(window.positions for window in windows)
    assert together == pytest.approx(sum(alone))
    assert [len(part) for part in batches(windows, 32)] == [3, 1]


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_model_in_a_gguf_file_is_trained_and_written_as_a_checkpoint(
    kind: str, target: Tokenizer, tmp_path: Path
) -> None:
    file = write_checkpoint_as_gguf(tmp_path / "draft.gguf", MODELS / "draft-other", kind)
    plain = model_to_train(Checkpoint.find(str(MODELS / "draft-other")), torch.float32)
    read = model_to_train(Checkpoint.find(str(file)), torch.float32)
    for name, values in plain.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name], values, rtol=0, atol=0 if kind == "F32" else 0.05)
    learner = TextLearner(str(file), target, QUICK)
    learned = texts(learner, target)
    assert learner.learn(learned, learned, 0, lambda _: None)
    assert learner.quantised == (kind == "Q8_0")
    learner.write(tmp_path / "v00001")
    written = Draft(str(tmp_path / "v00001"))
    own, new = Tokenizer.load(str(file)), Tokenizer.load(str(tmp_path / "v00001"))
    assert own.sha256 == new.sha256
    assert own.vocabulary().turns == new.vocabulary().turns
    assert own.vocabulary().opening == new.vocabulary().opening
    assert {each.dtype for each in written.model.state_dict().values()} == {torch.float32}, "for training"
    config = (tmp_path / "v00001" / "config.json").read_text()
    assert '"bfloat16"' in config
