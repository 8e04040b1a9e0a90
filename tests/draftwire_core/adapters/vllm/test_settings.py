"""DRAFTWIRE_VLLM_* variables."""

import pytest

from draftwire_core.adapters.vllm.settings import VllmSettings
from draftwire_core.runtime.process.settings import SettingsError, settings_from_environment


def test_defaults_need_no_variable() -> None:
    settings = settings_from_environment(VllmSettings)
    assert settings.listen == "127.0.0.1:50061"
    assert settings.drafter == ()
    assert settings.coupled_sampling


def test_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_VLLM_DRAFTER", "one:50052, two:50052")
    monkeypatch.setenv("DRAFTWIRE_VLLM_MAX_WAIT_MS", "12.5")
    monkeypatch.setenv("DRAFTWIRE_LISTEN", "a verifier's, and none of the adapter's business")
    settings = settings_from_environment(VllmSettings)
    assert settings.drafter == ("one:50052", "two:50052")
    assert settings.max_wait_ms == 12.5


def test_a_service_in_kubernetes_may_be_called_draftwire_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8000_TCP", "PORT_8000_TCP_ADDR"):
        monkeypatch.setenv(f"DRAFTWIRE_VLLM_{name}", "10.0.0.7")
    assert settings_from_environment(VllmSettings).listen == "127.0.0.1:50061"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DRAFTWIRE_VLLM_MAX_WAIT_MS", "-1"),
        ("DRAFTWIRE_VLLM_MAX_WAIT_MS", "soon"),
        ("DRAFTWIRE_VLLM_REQUEST_IDLE_SECONDS", "0"),
        ("DRAFTWIRE_VLLM_MAX_TREE_NODES", "257"),
        ("DRAFTWIRE_VLLM_LISTEN", "nowhere"),
        ("DRAFTWIRE_VLLM_DRAFTERS", "one:50052"),
        ("DRAFTWIRE_VLLM_TRACE_ENDPOINT", "http://localhost:4317"),
    ],
)
def test_what_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"^{name}: "):
        settings_from_environment(VllmSettings)
