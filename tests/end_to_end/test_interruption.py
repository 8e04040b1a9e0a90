"""Commands that are ended leave no drafter behind in a verifier that goes on."""

import signal
import subprocess
import sys

import pytest

from draftwire import Client
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.services.service_process import ServiceProcess
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "arguments", [("check", "--requests", "40"), ("bench", "--method", "local:ngram")], ids=lambda each: each[0]
)
def test_what_was_attached_is_detached(
    verifier: ServiceProcess, client: Client, number: signal.Signals, arguments: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "draftwire.cli", *arguments, "--verifier", verifier.address]
    with processes.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        try:
            eventually(client.drafters.list, "it has attached drafters")
            running.send_signal(number)
            assert running.wait(PATIENCE) == 130
            assert "Traceback" not in running.stderr.read()
        finally:
            running.kill()
    assert client.drafters.list() == []
