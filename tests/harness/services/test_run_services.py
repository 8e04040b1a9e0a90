"""The services of a run: one process each, whoever asks for it, until the last user has ended."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.services import services
from tests.harness.services.run_services import RunServices, run_processes

pytestmark = pytest.mark.processes

SERVICE = """
import json, sys, time
print(json.dumps({"event": "listening", "address": "127.0.0.1:1"}), flush=True)
time.sleep(600)
"""


Worker = Callable[[str], RunServices]
"""The type of `worker("gw0")`, a worker's view of the services of a run."""


@pytest.fixture
def worker(directories_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Views of a run whose services are small programs."""

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", SERVICE], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(services.processes, "Popen", lambda command, spares=0, **options: popen(command, **options))
    return lambda name: RunServices(directories_of(name))


def test_a_service_starts_once_in_a_run(worker: Worker) -> None:
    with worker("gw0") as first, worker("gw1") as second:
        started, seen = first.verifier("target"), second.verifier("target")
        assert started.pid == seen.pid and seen.address == "127.0.0.1:1" and seen.alive
        assert first.verifier("target") is started
        assert first.verifier("draft").pid != started.pid
        assert first.verifier("target", "--kv-slots", "9").pid != started.pid
        assert started.pid in run_processes()
        second.__exit__(None, None, None)
    assert not started.alive and not seen.alive and started.pid not in run_processes()


def test_it_ends_after_its_last_user(worker: Worker) -> None:
    first, second = worker("gw0").__enter__(), worker("gw1").__enter__()
    service = first.verifier("target")
    ending = threading.Thread(target=first.__exit__, args=(None, None, None))
    ending.start()
    time.sleep(0.2)
    assert ending.is_alive() and service.alive
    second.__exit__(None, None, None)
    ending.join(20)
    assert not service.alive
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)
