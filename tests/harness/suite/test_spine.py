"""The services of a run: one process each, whoever asks for it, until the last user has ended."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness import services
from tests.harness.suite.spine import Spine, spine_processes

pytestmark = pytest.mark.processes

SERVICE = """
import json, sys, time
print(json.dumps({"event": "listening", "address": "127.0.0.1:1"}), flush=True)
time.sleep(600)
"""


Worker = Callable[[str], Spine]
"""The type of `worker("gw0")`, a worker's view of the services of a run."""


@pytest.fixture
def worker(directories_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Worker:
    """Views of a run whose services are small programs."""

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", SERVICE], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(services.processes, "Popen", lambda command, spares=0, **options: popen(command, **options))
    return lambda name: Spine(directories_of(name))


def test_a_service_starts_once_in_a_run(worker: Worker) -> None:
    with worker("gw0") as first, worker("gw1") as second:
        started, seen = first.service("verifier", "target"), second.service("verifier", "target")
        assert started.pid == seen.pid and seen.address == "127.0.0.1:1" and seen.alive
        assert first.service("verifier", "target") is started
        assert first.service("verifier", "draft").pid != started.pid
        assert first.service("verifier", "target", "--kv-slots", "9").pid != started.pid
        assert started.pid in spine_processes()
        second.__exit__(None, None, None)
    assert not started.alive and not seen.alive and started.pid not in spine_processes()


def test_it_ends_after_its_last_user(worker: Worker) -> None:
    first, second = worker("gw0").__enter__(), worker("gw1").__enter__()
    service = first.service("verifier", "target")
    ending = threading.Thread(target=first.__exit__, args=(None, None, None))
    ending.start()
    time.sleep(0.2)
    assert ending.is_alive() and service.alive
    second.__exit__(None, None, None)
    ending.join(20)
    assert not service.alive
    with pytest.raises(ProcessLookupError):
        os.kill(service.pid, 0)
