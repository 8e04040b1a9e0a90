"""A recurrent head that learns from a target's states on texts."""

from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.recurrent import recurrent_head
from draftwire_core.engine.drafters.recurrent.recurrent_head import RecurrentHead
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.training.learning import state_learner, target_reader
from draftwire_core.training.learning.state_learner import (
    ReadTexts,
    StateLearner,
    fit_map,
    frequent_tokens,
    share_agreed,
    unrolled_loss,
)
from draftwire_core.training.learning.target_reader import TargetReader
from draftwire_core.training.learning.text_learner import TextTraining
from draftwire_core.training.learning.texts.draft_text import DraftText
from tests.harness.engine.engines import GREEDY, engine_of, generate, packed, random_tokens, specs_of, tiny_model
from tests.harness.engine.recurrent_models import RECURRENT_MODELS
from tests.harness.models.recurrent_training import QUICK, examples

PROMPTS = [random_tokens(length, seed=length) for length in (9, 3, 20)]


@pytest.fixture(scope="module")
def texts() -> list[tuple[list[int], list[int]]]:
    specs = specs_of(PROMPTS, 30, GREEDY)
    found = generate(engine_of(packed(tiny_model("Llama"), 400)), specs).tokens
    return [(list(spec.tokens), found[spec.sequence_id]) for spec in specs]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    tiny_model("Llama").save_pretrained(directory)
    return directory


def test_it_learns_and_goes_on_from_what_it_wrote(
    target: Path, texts: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    learner = StateLearner("", str(target), QUICK)
    learned = examples(learner, texts)
    told: list[str] = []
    assert learner.learn(learned, learned, 0, told.append)
    assert (learner.before, learner.measured) == (0.0, sum(len(output) - 2 for _, output in texts))
    assert learner.after > 0.8
    assert told[-1].startswith("step 150 of 150, loss")
    learner.write(tmp_path / "v00001")
    learner.go_back()
    still = StateLearner(str(tmp_path / "v00001"), str(target), TextTraining(steps=1, learning_rate=0.0))
    assert not still.learn(learned, learned, 0, told.append), "it is no better after a step of no length"
    assert still.before == still.after == pytest.approx(learner.after, abs=0.1), "as it was rounded"


def test_a_text_is_read_once(
    target: Path, texts: list[tuple[list[int], list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, states, read = StateLearner("", str(target), TextTraining(steps=1)), TargetReader.states, []

    def seen(self: TargetReader, tokens: list[int], begin: int) -> torch.Tensor | None:
        read.append(len(tokens))
        return states(self, tokens, begin)

    monkeypatch.setattr(TargetReader, "states", seen)
    first, *others = examples(learner, texts)
    learner.learn([first], others, 0, lambda _: None)
    learner.learn([first], others[:1], 1, lambda _: None)
    assert read == [len(each.tokens) for each in (*others, first)]
    learner.learn(others, [first], 2, lambda _: None)
    assert read[len(texts) :] == [len(others[1].tokens)], "what the last round did not have was forgotten"


def test_no_copy_of_the_target_is_loaded_where_there_is_no_memory_for_it(
    target: Path, texts: list[tuple[list[int], list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_learner, "free_memory", lambda: 1000)
    learner = StateLearner("", str(target), QUICK)
    learned, told = examples(learner, texts), list[str]()
    assert not learner.learn(learned, learned, 0, told.append)
    assert told[0].startswith(f"the head learns nothing: there is no memory for a copy of {target}")


def test_all_files_of_a_split_target_need_memory(
    texts: list[tuple[list[int], list[int]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(state_learner, "free_memory", lambda: 1000)
    first, second = (tmp_path / f"target-0000{part}-of-00002.gguf" for part in (1, 2))
    first.write_bytes(bytes(10))
    second.write_bytes(bytes(1000))
    learner, told = StateLearner("", str(first), QUICK), list[str]()
    learned = examples(learner, texts)
    assert not learner.learn(learned, learned, 0, told.append)
    assert told[0].startswith("the head learns nothing: there is no memory")


def test_nothing_is_left_of_a_checkpoint_for_which_there_is_no_room(
    target: Path, texts: list[tuple[list[int], list[int]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learner = StateLearner("", str(target), TextTraining(steps=1))
    learned = examples(learner, texts)
    learner.learn(learned, learned, 0, lambda _: None)

    def write(path: Path, *_: object) -> None:
        path.write_bytes(bytes(100))
        raise OSError("No space left on device")

    monkeypatch.setattr(recurrent_head, "write_tensors", write)
    with pytest.raises(OSError, match="No space left"):
        learner.write(tmp_path / "v00001")
    assert not list(tmp_path.iterdir())


def test_texts_of_another_target_are_refused(target: Path) -> None:
    learner = StateLearner("", str(target), QUICK)
    learned = examples(learner, [([1, 2], [3, 4, 500, 5, 6])])
    with pytest.raises(ModelLoadError, match=r"has 300 tokens, but .* the id 500: it is not the verifier's target"):
        learner.learn(learned, learned, 0, lambda _: None)


def test_a_short_output_teaches_nothing(target: Path) -> None:
    assert StateLearner("", str(target), QUICK).example([1, 2], [3, 4, 5]) is None


def read(texts: list[tuple[list[int], list[int]]], model_slots: int = 100) -> tuple[ReadTexts, TargetReader]:
    target = TargetReader(packed(tiny_model("Llama"), model_slots))
    learner = StateLearner("", "", QUICK)
    found = ReadTexts.of(examples(learner, texts), target, {})
    assert found is not None
    return found, target


def test_places_are_those_whose_next_token_is_drafted_from(texts: list[tuple[list[int], list[int]]]) -> None:
    """Of a prompt, whose states may need more memory than all else, only the last place is kept."""
    found, target = read(texts[:2])
    (first, output), (second, other) = texts[:2]
    begin = len(output) + 1
    assert found.begins.tolist() == [*range(len(output) - 2), *range(begin, begin + len(other) - 2)]
    assert found.tokens.tolist() == [first[-1], *output, second[-1], *other]
    states = [target.states([*prompt, *text])[len(prompt) - 1 :] for prompt, text in texts[:2]]
    assert torch.equal(found.states, torch.cat(states))


def test_states_lead_to_the_targets_own_tokens(texts: list[tuple[list[int], list[int]]]) -> None:
    """The rows of the output head, its states and the tokens fit together: a greedy target wrote the likeliest."""
    found, target = read(texts)
    rows = target.output_rows(torch.arange(target.vocab_size))
    best = (found.states[found.begins].float() @ rows.T).argmax(1)
    assert (best == found.tokens[found.begins + 1]).float().mean() > 0.95, "but for rounding to bfloat16"
    torch.testing.assert_close(rows, tiny_model("Llama").get_output_embeddings().weight.data, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["Lfm2", "Qwen3_5", "Gemma3"])
def test_states_of_other_targets(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are read in parts, since logits of whole texts may take gigabytes; the states lead to those of one pass."""
    monkeypatch.setattr(target_reader, "_ROWS", 16)
    changes = RECURRENT_MODELS.get(architecture, {})
    model = packed(tiny_model(architecture, **changes), 100)
    assert bool(model.recurrent_layers) == bool(changes)
    target, tokens = TargetReader(model), random_tokens(60, seed=1)
    forward, rows_of = model.forward_with_states, list[int]()

    def passed(batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        rows_of.append(len(batch))
        return forward(batch)

    monkeypatch.setattr(model, "forward_with_states", passed)
    states = target.states(tokens)
    assert rows_of == [16, 16, 16, 12]
    torch.testing.assert_close(target.states(tokens), states)
    assert states.shape == (60, model.hidden_size)
    assert model.pool.used == 0
    with torch.no_grad():
        expected = tiny_model(architecture, **changes)(torch.tensor([tokens]), use_cache=False).logits[0]
    rows = target.output_rows(torch.arange(model.vocab_size))
    agreeing = ((states.float() @ rows.T).argmax(1) == expected.argmax(1)).float().mean()
    assert agreeing > 0.9


def test_rows_of_a_head_with_a_bias() -> None:
    model = tiny_model("Phi")
    head = model.get_output_embeddings()
    rows = head.weight.detach().clone()
    torch.nn.init.normal_(head.bias)
    found = TargetReader(packed(model, 10)).output_rows(torch.arange(len(rows)))
    torch.testing.assert_close(found, rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("architecture", "changes"), [("Granite", {"logits_scaling": 8.0}), ("Cohere", {})])
def test_rows_have_the_scale_of_the_targets_logits(architecture: str, changes: dict[str, float]) -> None:
    model = packed(tiny_model(architecture, **changes), 20)
    target, tokens = TargetReader(model), random_tokens(12, seed=1)
    rows = target.output_rows(torch.arange(model.vocab_size))
    with torch.no_grad():
        expected = tiny_model(architecture, **changes)(torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(target.states(tokens).float() @ rows.T, expected, rtol=0.02, atol=0.02)
    assert model.pool.used == 0


def test_the_map_is_that_of_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted = torch.randn(4, 9, generator=generator)
    places = 200
    found = ReadTexts(
        torch.arange(places + 1), torch.randn(places + 1, 4, generator=generator), torch.arange(places + 1),
        torch.randn(places + 1, 4, generator=generator), torch.arange(places),
    )  # fmt: skip
    inputs = torch.nn.functional.pad(found.inputs(found.begins), (0, 1), value=1.0)
    follows = torch.zeros(places + 1, 4)
    follows[1:] = inputs @ wanted.T
    head = RecurrentHead(4, 4, 10, 2)
    mixed = ReadTexts(found.tokens, found.embeddings, found.of_token, found.states.clone(), found.begins)
    # Places are read from even ones alone, whose followers are odd ones.
    mixed.states[1::2] = follows[1::2]
    fit_map(head, ReadTexts(mixed.tokens, mixed.embeddings, mixed.of_token, mixed.states, torch.arange(0, places, 2)))
    torch.testing.assert_close(head.enter.weight[:4], wanted[:, :8], rtol=0.05, atol=0.05)
    torch.testing.assert_close(head.enter.bias[:4], wanted[:, 8], rtol=0.05, atol=0.05)


def test_frequent_tokens_come_first_and_low_ids_fill_the_rest() -> None:
    assert frequent_tokens(torch.tensor([9, 9, 9, 7, 7, 30]), 2).tolist() == [7, 9]
    assert frequent_tokens(torch.tensor([9, 9, 9, 7, 7, 30]), 5).tolist() == [0, 1, 7, 9, 30]


def test_the_loss_is_least_for_a_head_that_knows_the_states(texts: list[tuple[list[int], list[int]]]) -> None:
    found, target = read(texts)
    head = RecurrentHead(target.hidden_size, 8, target.vocab_size, 1)
    all_tokens = torch.arange(target.vocab_size)
    head.draft_with(all_tokens, target.output_rows(all_tokens))
    before = unrolled_loss(head, found, found.begins).item()
    fit_map(head, found)
    assert unrolled_loss(head, found, found.begins).item() < before
    assert share_agreed(head, found) > 0.5


def test_text_of_a_prompt_is_not_drafted_from(texts: list[tuple[list[int], list[int]]]) -> None:
    learner = StateLearner("", "", QUICK)
    found = learner.example([5, 6, 7], [8, 9, 10, 11])
    assert isinstance(found, DraftText)
    assert (found.first, found.positions) == (3, 4)
