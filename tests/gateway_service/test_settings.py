"""The gateway's settings and their sources."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from draftwire_core.runtime.process.settings import load_settings
from gateway_service.settings import GatewaySettings
from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes


def test_flags_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_GATEWAY_VERIFIER", "a:1,b:2")
    monkeypatch.setenv("DRAFTWIRE_GATEWAY_LISTEN", "0.0.0.0:80")
    settings = load_settings(GatewaySettings, ["--listen", "[::1]:90", "--max-choices", "3"])
    assert settings.verifier == ("a:1", "b:2")
    assert (settings.listen, settings.max_choices, settings.max_tokens) == ("[::1]:90", 3, 0)


@pytest.mark.parametrize("flags", [["--verifier", "a:1", "--verifier", "b:2"], ["--verifier", "a:1,b:2"]])
def test_several_verifiers(flags: list[str]) -> None:
    assert load_settings(GatewaySettings, flags).verifier == ("a:1", "b:2")


def test_weights_of_verifiers() -> None:
    weighted = ("a:1?weight=2", "dns:///verifiers:50051")
    assert load_settings(GatewaySettings, ["--verifier", ",".join(weighted)]).verifier == weighted


def test_keys_stay_out_of_what_is_printed() -> None:
    settings = load_settings(GatewaySettings, ["--api-key", "secret-one", "--api-key", "secret-two"])
    assert [key.get_secret_value() for key in settings.api_key] == ["secret-one", "secret-two"]
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--listen", "8000"], "--listen (DRAFTWIRE_GATEWAY_LISTEN): must be HOST:PORT"),
        (["--verifier", "nowhere"], "--verifier"),
        (["--verifier", ""], "--verifier: at least one"),
        (["--verifier", "a:1,b:2?weight=x"], "--verifier (DRAFTWIRE_GATEWAY_VERIFIER): 'b:2?weight=x': weight must be"),
        (
            ["--verifier", "a?weight=2"],
            "--verifier (DRAFTWIRE_GATEWAY_VERIFIER): 'a' is not the address of a service: expected HOST:PORT",
        ),
        (["--spread-prefix-bytes", "0"], "--spread-prefix-bytes"),
        (["--spread-load-bound", "0.5"], "--spread-load-bound"),
        (["--max-body-bytes", "5"], "--max-body-bytes"),
        (["--max-choices", "300"], "--max-choices: must be at most --max-generations (256)"),
        (["--models", "models.toml", "--verifier", "a:1"], "--models: names models and verifiers; omit --verifier"),
        (["--log-format", "xml"], "--log-format"),
        (["--api-key", ""], "--api-key (DRAFTWIRE_GATEWAY_API_KEY): contains no key"),
    ],
)
def test_what_is_wrong_is_told(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(GatewaySettings, flags)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_an_empty_variable_of_keys_does_not_open_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_API_KEYS", " , ")
    with pytest.raises(SystemExit):
        load_settings(GatewaySettings, [])
    monkeypatch.setenv("DRAFTWIRE_API_KEYS", "one, two")
    assert len(load_settings(GatewaySettings, []).api_key) == 2
    assert len(load_settings(GatewaySettings, ["--api-key=three"]).api_key) == 1


def test_settings_are_frozen_and_explained() -> None:
    assert GatewaySettings.model_config["frozen"]
    missing: Any = [name for name, field in GatewaySettings.model_fields.items() if not field.description]
    assert not missing


def test_the_process_needs_no_torch() -> None:
    forbid = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'tokenizers', 'numpy', 'draftwire_core.engine', "
        "'draftwire_core.runtime.errors',\n"
        "             'draftwire_core.runtime.rpc', 'draftwire_core.runtime.security', "
        "'draftwire_core.runtime.observability'):\n"
        "    sys.modules[name] = None\n"
    )
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    done = run([sys.executable, "-c", forbid + "from gateway_service.process import main; main(['--help'])"])
    assert done.returncode == 0, done.stderr
    assert "--verifier" in done.stdout
    caught = run([sys.executable, "-c", forbid + "import draftwire_core.runtime.errors"])
    assert caught.returncode != 0
