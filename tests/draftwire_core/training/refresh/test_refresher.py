"""What a refresh keeps in its directory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire_core.training.data.example import example_of
from draftwire_core.training.distillation.trainer import DistillationOptions
from draftwire_core.training.refresh import refresher
from draftwire_core.training.refresh.draft_learner import DraftLearner
from draftwire_core.training.refresh.refresher import Refresher, RefreshOptions, Standing, read_standing
from draftwire_core.training.refresh.trial import TrialOptions, Verdict


def test_a_later_start_from_another_directory_finds_and_keeps_what_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = iter([Verdict(True, "canary", "faster"), *[Verdict(False, "canary", "slower")] * 4])
    monkeypatch.setattr(refresher, "try_out", lambda *_: next(verdicts))
    drafters = [SimpleNamespace(name=name, address=f"{name}:1") for name in ("old", "canary")]
    client = SimpleNamespace(drafters=SimpleNamespace(list=lambda: drafters))
    teacher: Any = SimpleNamespace(tokenizer_sha256="t", client=client)
    learner: Any = SimpleNamespace(source="m", tokenizer_sha256="t", go_back=lambda: None)

    def roll_out(directory: Path, standing: Standing, version: int) -> Standing:
        checkpoint = directory / f"v{version:05d}"
        checkpoint.mkdir(parents=True)
        follower: Any = None
        parts = teacher, follower, learner, directory, standing, RefreshOptions(), TrialOptions(), lambda _: None
        Refresher(*parts).roll_out(checkpoint)
        found = read_standing(directory)
        assert found is not None
        return found

    monkeypatch.chdir(tmp_path)
    standing = roll_out(Path("refreshed"), Standing(0, "m", "old", "canary:1"), 1)
    monkeypatch.chdir("/")
    for version in range(2, 6):
        standing = roll_out(tmp_path / "refreshed", standing, version)
    assert Path(standing.draft).is_dir()
    assert sorted(each.name for each in (tmp_path / "refreshed").glob("v*")) == ["v00001", "v00003", "v00004", "v00005"]


@pytest.mark.parametrize("content", ["", '{"version": 3', "[]", "{}"])
def test_a_damaged_standing_is_said_to_be(content: str, tmp_path: Path) -> None:
    (tmp_path / "standing.json").write_text(content)
    with pytest.raises(ValueError, match=r"standing\.json is damaged: remove it"):
        read_standing(tmp_path)


@pytest.mark.parametrize(("prompt", "known"), [(5, True), (200, False)])
def test_a_text_with_a_token_that_the_draft_lacks_is_left_out(prompt: int, known: bool) -> None:
    scored = example_of([prompt, 7, 8], 1, [[3], [4]], [[-1.0], [-1.0]])
    draft: Any = SimpleNamespace(vocab_size=200, source="m", tokenizer=SimpleNamespace(sha256="t"), context_length=99)
    teacher: Any = SimpleNamespace(score=lambda *_: scored)
    learner = DraftLearner(draft, teacher, DistillationOptions(), 1)
    assert (learner.example([prompt], [7, 8]) is scored) is known
