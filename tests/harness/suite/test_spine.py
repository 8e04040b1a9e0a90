"""The services of a run: one process each, whoever asks for it, until the last user has ended."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.harness import services
from tests.harness.suite.spine import Spine, spine_processes

SERVICE = """
import json, sys, time
print(json.dumps({"event": "listening", "address": "127.0.0.1:1"}), flush=True)
time.sleep(600)
"""


class Factory:
    """The part of pytest's factory of directories that tells a worker's own."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def getbasetemp(self) -> Path:
        return self._base


@pytest.fixture
def cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run whose services are small programs."""

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", SERVICE], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(services.processes, "Popen", lambda command, spares=0, **options: popen(command, **options))
    return tmp_path


def worker(run: Path, name: str) -> Spine:
    base = run / f"popen-{name}"
    base.mkdir(exist_ok=True)
    return Spine(Factory(base))  # type: ignore[arg-type]


def test_a_service_starts_once_in_a_run(cheap: Path) -> None:
    with worker(cheap, "gw0") as first, worker(cheap, "gw1") as second:
        started, seen = first.service("verifier", "target"), second.service("verifier", "target")
        assert started.pid == seen.pid and seen.address == "127.0.0.1:1" and seen.alive
        assert first.service("verifier", "target") is started
        assert first.service("verifier", "draft").pid != started.pid
        assert first.service("verifier", "target", "--kv-slots", "9").pid != started.pid
        assert started.pid in spine_processes()
        second.__exit__(None, None, None)
    assert not started.alive and not seen.alive and started.pid not in spine_processes()


def test_it_ends_after_its_last_user(cheap: Path) -> None:
    first, second = worker(cheap, "gw0").__enter__(), worker(cheap, "gw1").__enter__()
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
