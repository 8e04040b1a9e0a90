from typing import Any

import pytest
from pydantic import Field, ValidationError

from draftwire_core.runtime.process.address import PeerAddress
from draftwire_core.runtime.process.settings import ServiceSettings, StringList, load_settings


class ProbeSettings(ServiceSettings):
    """Settings of a probe."""

    model: str
    """Directory or hub id of the model."""
    drafter: StringList = ()
    """Address of a drafter; may be repeated."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Number of processes the model is split over."""
    verifier: PeerAddress | None = None
    """Verifier to announce to, HOST:PORT."""
    bit_exact: bool = True
    """True refuses a device that cannot give the same bits, at 100 % of the speed."""


def problems(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    with pytest.raises(SystemExit) as exit_:
        load_settings(ProbeSettings, argv)
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return [line.partition(": ")[2] for line in captured.err.splitlines()]


def test_defaults() -> None:
    settings = load_settings(ProbeSettings, ["--model", "m"])
    assert (settings.model, settings.drafter, settings.tensor_parallel, settings.verifier) == ("m", (), 1, None)
    assert settings.listen == "127.0.0.1:0"
    with pytest.raises(ValidationError):
        settings.model = "other"


def test_flags() -> None:
    given = ["--model=m", "--drafter", "[::1]:5", "--drafter", "local:early_exit?layers=8", "--tensor-parallel", "2"]
    given += ["--listen", "[::]:7", "--log-format", "json", "--no-bit-exact", "--verifier", "host:1"]
    settings = load_settings(ProbeSettings, given)
    assert settings.drafter == ("[::1]:5", "local:early_exit?layers=8")
    assert (settings.tensor_parallel, settings.listen, settings.log_format) == (2, "[::]:7", "json")
    assert (settings.bit_exact, settings.verifier) == (False, "host:1")


def test_flags_win_over_variables_over_the_file_over_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "probe.toml"
    file.write_text(
        'model = "file"\nlog_level = "error"\nlisten = "file:1"\ndrafter = ["f:1", "f:2"]\ntensor_parallel = 4\n'
    )
    monkeypatch.setenv("DRAFTWIRE_CONFIG", str(file))
    monkeypatch.setenv("DRAFTWIRE_LISTEN", "env:2")
    monkeypatch.setenv("DRAFTWIRE_LOG_LEVEL", "warning")
    monkeypatch.setenv("DRAFTWIRE_DRAFTER", "e:1, e:2")
    settings = load_settings(ProbeSettings, ["--log-level", "debug"])
    assert (settings.log_level, settings.listen, settings.model) == ("debug", "env:2", "file")
    assert (settings.drafter, settings.tensor_parallel, settings.log_format) == (("e:1", "e:2"), 4, "console")


def test_the_flag_names_another_file_than_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "probe.toml"
    file.write_text('model = "flag"')
    monkeypatch.setenv("DRAFTWIRE_CONFIG", str(tmp_path / "missing.toml"))
    assert load_settings(ProbeSettings, ["--config", str(file)]).model == "flag"


def test_a_file_may_begin_with_the_mark_of_windows_editors(tmp_path: Any) -> None:
    file = tmp_path / "probe.toml"
    file.write_text('model = "m"', encoding="utf-8-sig")
    assert load_settings(ProbeSettings, ["--config", str(file)]).model == "m"


def test_every_problem_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "probe.toml"
    file.write_text("tensor_parallel = 0\nmodle = 'x'")
    monkeypatch.setenv("DRAFTWIRE_SHUTDOWN_GRACE_SECONDS", "nan")
    found = problems(
        capsys, "--config", str(file), "--listen", "nowhere", "--log-level", "loud", "--verifier", "host:0"
    )
    assert sorted(found) == sorted(
        [
            "--listen: must be HOST:PORT ([HOST]:PORT for IPv6), got 'nowhere'",
            "--log-level: input should be 'debug', 'info', 'warning' or 'error', got 'loud'",
            "--verifier: must name a port other than 0, got 'host:0'",
            "DRAFTWIRE_SHUTDOWN_GRACE_SECONDS: input should be a finite number, got 'nan'",
            f"tensor_parallel in {file}: input should be greater than or equal to 1, got 0",
            f"modle in {file}: there is no such setting",
            "--model: required; set it by this flag, DRAFTWIRE_MODEL or the file",
        ]
    )


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    missing, broken = tmp_path / "missing.toml", tmp_path / "broken.toml"
    broken.write_text("model = ")
    assert problems(capsys, "--config", str(missing)) == [f"--config: cannot read {missing}: No such file or directory"]
    [line] = problems(capsys, "--config", str(broken))
    assert line.startswith(f"--config: {broken} is not valid TOML: ")


def test_an_unknown_flag_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        load_settings(ProbeSettings, ["--model", "m", "--speed", "9"])
    assert exit_.value.code == 2
    assert "--speed" in capsys.readouterr().err


def test_help_lists_every_field_with_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        load_settings(ProbeSettings, ["--help"])
    assert exit_.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in ProbeSettings.model_fields.items():
        assert "--" + name.replace("_", "-") in shown
        assert field.description and " ".join(field.description.split()) in shown
    assert "Required. Also: DRAFTWIRE_MODEL." in shown
    assert "Default: 1. Also: DRAFTWIRE_TENSOR_PARALLEL." in shown
    assert "debug|info|warning|error" in shown
