"""From prompts to a checkpoint that a drafter service loads, at once or with an interruption."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drafter_service.models.loaded_model import load_model
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.data.dataset import DatasetError
from draftwire_core.training.data.example import Example
from draftwire_core.training.data.texts import read_prompts
from draftwire_core.training.distillation.acceptance import DraftAcceptance
from draftwire_core.training.distillation.distiller import CollectionOptions, Distillation, Distiller
from draftwire_core.training.distillation.draft import Draft
from draftwire_core.training.distillation.trainer import DistillationOptions
from draftwire_core.training.refresh.learner import ReplaySet
from draftwire_core.training.teachers.local_teacher import LocalTeacher
from draftwire_core.training.teachers.teacher import Question
from tests.harness.models.tiny_checkpoint import write_checkpoint


class Interrupted(Exception):
    pass


class Flaky:
    """A teacher that fails after some answers."""

    def __init__(self, teacher: LocalTeacher, answers: int) -> None:
        self._teacher = teacher
        self._left = answers
        self.tokenizer_sha256, self.fingerprint, self.longest = (
            teacher.tokenizer_sha256,
            teacher.fingerprint,
            teacher.longest,
        )

    def answer(self, questions: Sequence[Question], top: int) -> list[Example]:
        if self._left == 0:
            raise Interrupted
        self._left -= 1
        return self._teacher.answer(questions, top)

    def close(self) -> None:
        pass


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"text": f"w{number} w{number + 1}"} for number in range(19)] + [{"token_ids": [5, 6, 7]}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def distiller(teacher: LocalTeacher | Flaky, draft: Path, directory: Path, told: list[str]) -> Distiller:
    return Distiller(
        teacher,
        Draft(str(draft)),
        directory,
        CollectionOptions(max_tokens=10, temperature=0.5, samples=2, top=16),
        DistillationOptions(30, 4, 1e-2, warmup=3),
        told.append,
        held_out=0.2,
        checkpoint_every=7,
    )


def test_a_checkpoint_comes_out_that_a_drafter_loads(target: Path, draft: Path, prompts: Path, tmp_path: Path) -> None:
    told: list[str] = []
    result = distiller(LocalTeacher(str(target)), draft, tmp_path / "out", told).run(prompts)
    assert (result.examples, result.held_out, result.steps) == (40, 8, 30)
    assert result.after.coupled > 3 * result.before.coupled
    lines = iter(told)
    stages = ("collected 40 of 40 examples (after ", "measuring the draft model on ", "before: ", "step ", "after: ")
    assert all(any(line.startswith(stage) for line in lines) for stage in stages), told
    loaded = load_model(DrafterSettings(model=str(result.directory), kv_slots=256, threads=1))
    assert loaded.info.tokenizer_sha256 == Tokenizer.load(str(target)).sha256
    before, after = (load_file(path / "model.safetensors") for path in (draft, result.directory))
    assert {name: weights.dtype for name, weights in after.items()} == {
        name: weights.dtype for name, weights in before.items()
    }
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_whatever_interrupts_it_the_same_comes_out(
    target: Path, draft: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = LocalTeacher(str(target))
    whole = distiller(teacher, draft, tmp_path / "whole", []).run(prompts)

    directory = tmp_path / "parts"
    with pytest.raises(Interrupted):
        distiller(Flaky(teacher, answers=1), draft, directory, []).run(prompts)
    steps = 0

    def interrupt(line: str) -> None:
        nonlocal steps
        steps += line.startswith("step ")
        if steps == 17:
            raise Interrupted

    monkeypatch.setattr("draftwire_core.training.distillation.distiller.LINE_SECONDS", 0.0)
    second = distiller(Flaky(teacher, answers=2), draft, directory, [])
    second.tell = interrupt
    with pytest.raises(Interrupted):
        second.run(prompts)
    told: list[str] = []
    result: Distillation = distiller(Flaky(teacher, answers=0), draft, directory, told).run(prompts)
    assert "resuming from step 14" in told
    assert (result.before, result.after) == (whole.before, whole.after)
    one, other = (load_file(path / "model.safetensors") for path in (whole.directory, result.directory))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("left", [0, 1000])
def test_a_state_that_was_cut_off_begins_the_training_again(
    left: int, target: Path, draft: Path, prompts: Path, tmp_path: Path
) -> None:
    teacher, told = LocalTeacher(str(target)), list[str]()
    made = distiller(teacher, draft, tmp_path, told)
    data = made.collect([[3, 4], [5, 6], [7, 8]])
    (tmp_path / "training.pt").write_bytes(b"PK\x03\x04".ljust(left)[:left])
    assert made.train(data, 3).steps == 30
    assert f"{tmp_path / 'training.pt'} is damaged: training begins again" in told


def test_data_of_something_else_are_not_mixed(target: Path, draft: Path, prompts: Path, tmp_path: Path) -> None:
    teacher = LocalTeacher(str(target))
    distiller(teacher, draft, tmp_path / "out", []).collect([[3, 4]])
    with pytest.raises(DatasetError, match="prompts"):
        distiller(teacher, draft, tmp_path / "out", []).collect([[3, 5]])


def test_a_draft_with_another_tokenizer_is_refused(target: Path, prompts: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", words=90)
    with pytest.raises(ValueError, match="tokenizer"):
        distiller(LocalTeacher(str(target)), other, tmp_path / "out", []).run(prompts)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": "w1"}\n{"txt": "w2"}\n', "line 2"),
        ("a.jsonl", "[1]\n", "line 1"),
        ("a.txt", "\n \n", "no prompt"),
    ],
)
def test_files_without_prompts_are_refused(target: Path, tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_prompts(path, Tokenizer.load(str(target)), 10)


def test_prompts_are_read_and_cut(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("w1 w2 w3 w4\n\nw5\n")
    assert read_prompts(path, Tokenizer.load(str(target)), 3) == [[5, 6, 7], [8]]


def test_the_replay_set_keeps_the_newest_and_never_learns_what_it_measures(target: Path) -> None:
    examples = LocalTeacher(str(target)).answer([Question([3 + number], 4, 0.0, 0) for number in range(60)], 2)
    replay: ReplaySet[Example] = ReplaySet(20)
    for example in examples:
        replay.add(example)
    learned, held_out = ([int(example.tokens[0]) - 3 for example in part] for part in (replay.learned, replay.held_out))
    assert held_out == list(range(0, 60, 5))[-8:]
    assert learned == [number for number in range(60) if number % 5][-20:]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((0.5, 0.6), (0.5, 0.6), []),
        ((0.5, 0.6), (0.7, 0.8), []),
        ((0.5, 0.6), (0.4, 0.8), ["worse", "sampled from 50.0 % to 40.0 %"]),
        ((0.5, 0.6), (0.4, 0.3), ["sampled from 50.0 % to 40.0 % and greedy from 60.0 % to 30.0 %"]),
    ],
)
def test_a_draft_that_became_worse_is_said_to_be(
    before: tuple[float, float], after: tuple[float, float], words: list[str], tmp_path: Path
) -> None:
    result = Distillation(tmp_path, 10, 2, 5, DraftAcceptance(*before, 100), DraftAcceptance(*after, 100))
    assert bool(result.worse) == bool(words)
    assert all(word in result.worse for word in words)


@pytest.mark.parametrize("token", [150, 10**6, -1])
def test_prompts_with_tokens_that_the_draft_lacks(target: Path, tmp_path: Path, token: int) -> None:
    """They are refused before any question is asked; a text of blanks, which has no tokens, is left out."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"text": " "}}\n{{"text": "w1"}}\n{{"token_ids": [5, {token}]}}\n')
    draft, told = write_checkpoint(tmp_path / "draft", vocab_size=150), list[str]()
    with pytest.raises(ValueError, match=f"^--prompts: token {token} is none of the draft model's 150$"):
        distiller(LocalTeacher(str(target)), draft, tmp_path / "out", told).run(path)
    assert read_prompts(path, Tokenizer.load(str(target)), 10) == [[4], [5, token]]
    assert not told
