"""Ranks, from the settings and torchrun's variables."""

import pytest

from service_runtime.process.rank_settings import RankSettings
from service_runtime.process.settings import load_settings


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets the variables of the second of four processes, as torchrun does."""
    variables = {"TORCHELASTIC_RUN_ID": "run", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_alone_a_process_is_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "3")  # not set by torchrun
    settings = load_settings(RankSettings, [])
    assert (settings.rank, settings.tensor_parallel) == (0, 1)


@pytest.mark.parametrize("flags", [[], ["--tensor-parallel", "4"]])
def test_torchrun_says_how_many_ranks_there_are(launched: pytest.MonkeyPatch, flags: list[str]) -> None:
    settings = load_settings(RankSettings, flags)
    assert (settings.rank, settings.tensor_parallel) == (1, 4)


def test_another_number_than_torchruns_is_refused(
    launched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load_settings(RankSettings, ["--tensor-parallel", "2"])
    assert "--tensor-parallel: torchrun has started 4 processes, got 2" in capsys.readouterr().err


def test_ranks_on_several_machines_are_refused(
    launched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        load_settings(RankSettings, [])
    assert "--tensor-parallel: all ranks must be on one machine, but only 2 of 4 are on" in capsys.readouterr().err
