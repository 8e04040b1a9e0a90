"""The learner next to what is served: where it keeps what it learns, and what is told of it."""

from pathlib import Path

import pytest

from draftwire_core.training.learning.texts.lookup_texts import LOOKUP_TEXTS
from draftwire_tools.serve.device import Device
from draftwire_tools.serve.learner_process import (
    LearnerProcess,
    learned_lookup,
    learning_directory,
    learns_head,
    tunable,
)
from draftwire_tools.serve.plan import Options, plan_of
from verifier_service.reading.local_address import read_local_address

OPTIONS = Options(Device("cpu", "auto", "cpu"), learn=True)


@pytest.mark.parametrize(
    ("drafts", "learns"),
    [
        ((), False),
        (("small", "local:ngram"), False),
        (("local:draft?model=m",), True),
        (("local:recurrent",), True),
        (("local:recurrent?model=m", "local:ngram"), True),
    ],
)
def test_a_draft_model_in_the_verifier_can_learn(drafts: tuple[str, ...], learns: bool) -> None:
    assert tunable(plan_of("target", drafts, 1, OPTIONS)) == learns


@pytest.mark.parametrize(
    ("drafts", "chosen", "device", "learns"),
    [
        (("local:ngram",), ("local:ngram",), "cpu", True),
        (("local:ngram",), (), "cpu", False),
        (("local:ngram",), ("local:ngram",), "cuda:0", False),
        (("local:draft?model=m", "local:ngram"), ("local:draft?model=m", "local:ngram"), "cpu", False),
        (("local:draft?model=m", "local:ngram"), ("local:ngram",), "cpu", False),
        (("local:mtp", "local:ngram"), ("local:mtp", "local:ngram"), "cpu", False),
    ],
)
def test_a_head_learns_where_lookup_was_all_that_was_found(
    drafts: tuple[str, ...], chosen: tuple[str, ...], device: str, learns: bool
) -> None:
    options = Options(Device(device, "auto", device), learn=True)
    assert learns_head(plan_of("target", drafts, 1, options, chosen)) == learns


def test_no_head_learns_next_to_a_target_that_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_TENSOR_PARALLEL", "2")
    assert not learns_head(plan_of("target", ("local:ngram",), 1, OPTIONS, ("local:ngram",)))


def test_each_target_has_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = plan_of("owner/Model-8B", (), 1, OPTIONS)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert learning_directory(plan, "0123456789abcdef") == tmp_path / "draftwire/learning/Model-8B-0123456789ab"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert learning_directory(plan, "a" * 20) == tmp_path / f".local/share/draftwire/learning/Model-8B-{'a' * 12}"
    given = plan_of("m", (), 1, Options(Device("cpu", "auto", "cpu"), learn=True, learn_directory=tmp_path / "here"))
    assert learning_directory(given, "a") == tmp_path / "here"


def test_lookup_begins_with_the_file_that_the_learner_writes() -> None:
    address = learned_lookup(Path("/home/a b/learned"))
    assert address == f"local:suffix?shared=true&texts=/home/a%20b/learned/{LOOKUP_TEXTS}"
    assert read_local_address("address", address) == address


@pytest.mark.processes
def test_promoted_versions_are_news(tmp_path: Path) -> None:
    learner = LearnerProcess("127.0.0.1:1", tmp_path / "learned", plan_of("m", (), 1, OPTIONS), tmp_path)
    learner.kill()
    lines = ["v00001 drafts, as learned before; agreement 1 %", "v00002: 9 new tokens; promoted: 1.5 against 1.2"]
    told = "\nstep 1\n".join(lines)
    with learner.log.open("a") as log:
        log.write(f"{told}\nv00003: 9 new tokens; not promoted: it is no better\nv00004: 9 new")
    assert learner.news() == lines
    assert learner.news() == []
    with learner.log.open("a") as log:
        log.write(" tokens; promoted: 2 against 1\n")
    assert learner.news() == ["v00004: 9 new tokens; promoted: 2 against 1"]


@pytest.mark.processes
def test_a_log_that_a_cleaner_of_temporary_files_has_removed(tmp_path: Path) -> None:
    learner = LearnerProcess("127.0.0.1:1", tmp_path / "learned", plan_of("m", (), 1, OPTIONS), tmp_path)
    learner.kill()
    learner.log.unlink()
    assert learner.news() == []
    assert str(learner.failure(3)) == "learner ended with code 3"
