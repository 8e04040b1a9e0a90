"""A service that is still loading its model ends at the first signal, without waiting: nothing can be lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.checkout import MODELS
from tests.harness.processes import ended
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.stand_ins.hub_server import SilentHub
from tests.harness.waiting import LONG_PATIENCE, eventually

pytestmark = pytest.mark.slow

BLOCKING = """
import os, pathlib, time
from transformers import LlamaConfig

class BlockingConfig(LlamaConfig):
    model_type = "llama"

if os.environ.get("RANK") == "1":
    pathlib.Path(os.environ["BLOCKED_RANK"]).write_text(str(os.getpid()))
    time.sleep(100_000)
"""
"""The code of a checkpoint that loads in rank 0 and blocks in rank 1."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SilentHub]:
    """A hub that never answers, with services' time limit for it practically infinite."""
    silent = SilentHub()
    monkeypatch.setenv("HF_ENDPOINT", silent.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "100000")
    yield silent
    silent.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["verifier_service", "drafter_service"])
def test_while_it_waits_for_the_hub(module: str, number: signal.Signals, hub: SilentHub, services: Services) -> None:
    service = services.start(module, "--model", "lab/model", "--threads", "1", hub=True)
    try:
        [connection] = eventually(lambda: hub.asked("lab/model"), "it has asked the hub", patience=LONG_PATIENCE)
        service.process.send_signal(number)
        assert service.process.wait(LONG_PATIENCE) == 0
        connection.close()  # open until now, so the fetch had not ended
    finally:
        service.kill()
    events = service.events()
    assert events[0]["event"] == "starting"
    assert events[-1]["event"] == "start interrupted" and events[-1]["reason"] == number.name
    assert [event["repository"] for event in events if event["event"] == "hub download started"] == ["lab/model"]
    assert "Traceback" not in service.log.read_text()


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that never finishes loading in rank 1; returns the file in which rank 1 writes its process id."""
    place = tmp_path / "blocking"
    shutil.copytree(MODELS / "target", place)
    config = json.loads((place / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "blocking.BlockingConfig"}
    (place / "config.json").write_text(json.dumps(config))
    (place / "blocking.py").write_text(BLOCKING)
    monkeypatch.setenv("BLOCKED_RANK", str(tmp_path / "pid"))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "pid"


def ranks(blocked: Path, services: Services) -> tuple[ServiceProcess, int]:
    """Returns a verifier of two ranks, and the process id of rank 1, which is loading."""
    flags = (
        "--model",
        str(blocked.parent / "blocking"),
        "--threads",
        "1",
        "--tensor-parallel",
        "2",
        "--trust-remote-code",
    )
    service = services.start("verifier_service", *flags, hub=True)
    written = eventually(lambda: blocked.exists() and blocked.read_text(), "rank 1 is loading", patience=LONG_PATIENCE)
    return service, int(written)


def test_ranks_end_with_the_first(blocked: Path, services: Services) -> None:
    service, pid = ranks(blocked, services)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(LONG_PATIENCE) == 0
    eventually(lambda: ended(pid), "rank 1 has ended", patience=LONG_PATIENCE)


def test_a_rank_that_loads_obeys_signals(blocked: Path, services: Services) -> None:
    service, pid = ranks(blocked, services)
    os.kill(pid, signal.SIGINT)
    eventually(lambda: ended(pid), "rank 1 has ended", patience=LONG_PATIENCE)
    assert service.process.wait(LONG_PATIENCE) == 1
    [reason] = [event["reason"] for event in service.events() if event["event"] == "cannot start"]
    assert "rank 1 of 2 has ended" in reason
