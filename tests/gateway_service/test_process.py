"""The gateway's process: its log, and causes that prevent its start."""

from pathlib import Path

import httpx
import pytest

from tests.harness.services.services import Services
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--listen", "0.0.0.0:0"],
            "--listen: 0.0.0.0:0 is open to other machines, without encryption: give --tls-cert and "
            "--tls-key, or allow it with --insecure",
        ),
        (["--verifier", "verifier.example:50051"], "--verifier: "),
        (
            ["--tls-cert", "MISSING", "--tls-key", "MISSING"],
            "--tls-cert, --tls-key, --tls-client-ca: cannot read MISSING",
        ),
        (["--tls-ca", "MISSING"], "--tls-ca: cannot read MISSING"),
        (["--token-file", "MISSING"], "--token-file: cannot read MISSING"),
        (["--api-key-file", "MISSING"], "--api-key-file: cannot read MISSING"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_cause_that_keeps_it_from_starting_is_one_line(
    services: Services, tmp_path: Path, flags: list[str], told: str
) -> None:
    missing = str(tmp_path / "missing")
    gateway = services.gateway(*(each.replace("MISSING", missing) for each in flags))
    assert gateway.process.wait(PATIENCE) == 1
    [cause] = [event for event in gateway.events() if event["level"] == "error"]
    assert cause["event"].startswith(told.replace("MISSING", missing))
    assert set(cause) == {"event", "level", "timestamp"}


def test_lines_of_libraries_have_the_form_of_its_own(services: Services, fake: TellingVerifier) -> None:
    gateway = services.gateway("--verifier", fake.address, "--shutdown-grace-seconds", "0")
    assert gateway.url
    [library] = [event for event in gateway.events() if event["event"].startswith("Started server process")]
    [own] = [event for event in gateway.events() if event["event"] == "starting"]
    assert set(library) == {"event", "level", "timestamp"}
    assert set(own) == {"event", "level", "timestamp", "build", "settings"}
    assert "'shutdown_grace_seconds': 0" in str(own["settings"])
    assert gateway.stop() == 0


def test_an_open_console_does_not_hold_up_the_end(services: Services, fake: TellingVerifier) -> None:
    gateway = services.gateway("--verifier", fake.address, "--shutdown-grace-seconds", "600")
    with httpx.stream("GET", f"{gateway.url}/console/api/state", timeout=PATIENCE) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: state"
        assert gateway.stop() == 0
        assert any("the gateway is shutting down" in line for line in lines)
    assert [event for event in gateway.events() if event["level"] == "error"] == []
