"""The drafter's settings."""

import pytest

from drafter_service.settings import DrafterSettings
from draftwire_core.engine.device.choices import device_here
from draftwire_core.runtime.process.rank_settings import load_rank_settings
from draftwire_core.runtime.process.settings import load_settings


def test_the_model_is_all_that_is_needed() -> None:
    settings = load_settings(DrafterSettings, ["--model", "some/model"])
    assert settings.listen == "127.0.0.1:50052"
    assert settings.verifier == ()
    assert settings.dtype == "auto"
    assert not settings.trust_remote_code


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "--model"),
        (["--model", "m", "--medusa-heads", "h"], "--model"),
        (["--medusa-heads", "h", "--weights", "int8"], "--weights"),
        (["--model", "m", "--dtype", "int3"], "--dtype"),
        (["--medusa-heads", "h", "--kv-dtype", "q8_0"], "--kv-dtype"),
        (["--model", "m", "--kv-dtype", "fp8"], "--kv-dtype"),
        (["--model", "m", "--kv-dtype", "float16", "--device", "cuda"], "--kv-dtype"),
        (
            ["--model", "m", "--kv-slots", "0", "--device", "cpu"],
            "--kv-slots: 0, as many as there is memory for, requires --device cuda",
        ),
        (["--model", "m", "--kv-slots", "63"], "--kv-slots: must be 0 or at least 64, got 63"),
        (["--model", "m", "--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization"),
        (["--model", "m", "--device", "cuda:1", "--tensor-parallel", "2"], "--device"),
        (["--model", "m", "--weights", "int4", "--device", "cpu"], "--weights"),
        (["--model", "m", "--weights", "int2"], "--weights"),
        (["--model", "m", "--weights", "int4", "--device", "cuda", "--dtype", "float16"], "--weights"),
        (["--model", "m", "--weights", "int8", "--dtype", "float32"], "--weights"),
        (["--model", "m", "--layers", "0"], "--layers"),
        (["--model", "m", "--threads", "0"], "--threads"),
        (["--model", "m", "--verifier", "nowhere"], "--verifier"),
        (["--model", "m", "--verifier", "v:1", "--verifier", "nowhere"], "--verifier"),
        (["--model", "m", "--verifier", "v:1", "--verifier", "v:1"], "--verifier"),
        (["--model", "m", "--verifier", "v:1", "--listen", "0.0.0.0:5"], "--advertise"),
        (["--model", "m", "--tensor-parallel", "0"], "--tensor-parallel"),
        (["--model", "m", "--tensor-parallel", "2", "--weights", "int8"], "--tensor-parallel"),
        (["--medusa-heads", "h", "--tensor-parallel", "2"], "--tensor-parallel"),
        (["--model", "m", "--verifier-weight", "alice=2", "--verifier-weight", "bob"], "--verifier-weight"),
        (["--model", "m", "--kv-slots", "64", "--max-tree-nodes", "64"], "--kv-slots"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(DrafterSettings, flags)
    assert caught.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert problem in line


def test_what_is_no_device_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_rank_settings(DrafterSettings, device_here, ["--model", "m", "--device", "cuda:x"])
    assert caught.value.code == 2
    assert "--device: expected auto, cpu, cuda or cuda:N, got 'cuda:x'" in capsys.readouterr().err


def test_an_advertised_address_makes_any_interface_reachable() -> None:
    flags = ["--model", "m", "--verifier", "v:1", "--listen", "0.0.0.0:5", "--advertise", "here:5"]
    assert load_settings(DrafterSettings, flags).advertise == "here:5"


def test_verifiers_are_repeated_flags_or_a_variable_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    several = ["--verifier", "a:1", "--verifier", "b:2"]
    assert load_settings(DrafterSettings, ["--model", "m", *several]).verifier == ("a:1", "b:2")
    monkeypatch.setenv("DRAFTWIRE_ANNOUNCE_TO", "a:1, b:2")
    assert load_settings(DrafterSettings, ["--model", "m"]).verifier == ("a:1", "b:2")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(DrafterSettings, ["--help"])
    assert caught.value.code == 0
    output = capsys.readouterr().out
    for field in DrafterSettings.model_fields:
        assert f"--{field.replace('_', '-')}" in output
