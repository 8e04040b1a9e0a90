"""Ranks, from the settings and torchrun's variables."""

from dataclasses import dataclass

import pytest

from draftwire_core.runtime.process.rank_settings import RankSettings, load_rank_settings
from draftwire_core.runtime.process.settings import load_settings


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


@dataclass
class Device:
    """Stands in for a choice of a device."""

    device: str
    about: str = "a device"
    unused: str = ""


def test_the_device_is_decided_when_the_settings_are_read() -> None:
    asked = []

    def choose(device: str, cpu_only: str) -> Device:
        asked.append((device, cpu_only))
        return Device("cuda")

    settings, device = load_rank_settings(RankSettings, choose, ["--kv-slots", "0"])
    assert (settings.device, settings.asked_device, device.about) == ("cuda", "auto", "a device")
    assert settings.given == {"kv_slots": 0}
    assert asked == [("auto", "")]


def test_what_the_decided_device_cannot_do_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_rank_settings(RankSettings, lambda device, cpu_only: Device("cpu"), ["--kv-slots", "0"])
    assert caught.value.code == 2
    assert "--kv-slots: 0, as many as there is memory for, requires --device cuda" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def choose(device: str, cpu_only: str) -> Device:
        raise ValueError(f"--device: {device} cannot be used")

    with pytest.raises(SystemExit) as caught:
        load_rank_settings(RankSettings, choose, ["--device", "cuda"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(": --device: cuda cannot be used\n")
