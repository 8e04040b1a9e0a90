"""Real services with the bundled models, as child processes.

A start costs seconds of a core, so tests share what they do not break: `verifier`, `good_drafter`, `bad_drafter` and
`untrained_drafter` live as long as the session. What a test kills or starts with flags of its own comes from
`start_verifier` and `start_drafter`, and ends with the test. `client` leaves the shared verifier without drafters.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from draftwire import Client
from tests.harness import processes
from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
STEADY_VERIFIER = "tests.harness.steady_verifier"
START_SECONDS = 2 * PATIENCE
"""A service may take this long to start: torch takes its time on a busy machine."""


class RunningService:
    """A service's process. It starts at once; `address` waits until it serves, so several can start side by side."""

    def __init__(self, module: str, model: str, flags: tuple[str, ...], logs: Path) -> None:
        self.log = logs / f"{module}-{Path(model).name}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = processes.Popen(
                [
                    sys.executable, "-m", module, "--model", str(MODELS / model), "--listen", "127.0.0.1:0",
                    "--threads", "1", "--log-format", "json", *flags,
                ],
                cwd=ROOT,
                env=os.environ | processes.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                spares=1 if "--tensor-parallel" in flags else 0,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @cached_property
    def address(self) -> str:
        """HOST:PORT it serves on."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            for event in self.events():
                if event["event"] == "listening":
                    return str(event["address"])
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"it does not serve after {START_SECONDS} s:\n{self.log.read_text()}"
            time.sleep(0.05)

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far, apart from lines that are not JSON."""
        lines = self.log.read_text(errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ends it gracefully and returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


StartService = Callable[..., RunningService]
"""Starts a service: `start_drafter("draft-early", "--kv-slots", "4096")`; the model is optional."""


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def shared(logs: Path) -> Iterator[Callable[..., RunningService]]:
    """Starts services that live as long as the session."""
    with ExitStack() as running:

        def start(module: str, model: str, *flags: str) -> RunningService:
            service = RunningService(module, model, flags, logs)
            running.callback(service.kill)
            return service

        yield start


@pytest.fixture(scope="session")
def verifier(shared: Callable[..., RunningService]) -> RunningService:
    """A verifier for which drafting pays, whatever a row costs on this processor."""
    return shared(STEADY_VERIFIER, "target")


@pytest.fixture(scope="session")
def good_drafter(shared: Callable[..., RunningService]) -> str:
    """Address of the trained draft model."""
    return shared("drafter_service", "draft").address


@pytest.fixture(scope="session")
def bad_drafter(shared: Callable[..., RunningService]) -> str:
    """Address of an early checkpoint of the draft model."""
    return shared("drafter_service", "draft-early").address


@pytest.fixture(scope="session")
def untrained_drafter(shared: Callable[..., RunningService]) -> str:
    """Address of a draft model that has learnt nothing."""
    return shared("drafter_service", "draft-untrained").address


@pytest.fixture
def start_verifier(logs: Path) -> Iterator[StartService]:
    """Starts verifiers that end with the test, with the same costs of steps as the shared one."""
    with ExitStack() as running:

        def start(model: str = "target", *flags: str) -> RunningService:
            service = RunningService(STEADY_VERIFIER, model, flags, logs)
            running.callback(service.kill)
            return service

        yield start


@pytest.fixture
def start_drafter(logs: Path) -> Iterator[StartService]:
    """Starts drafters that end with the test."""
    with ExitStack() as running:

        def start(model: str = "draft", *flags: str) -> RunningService:
            service = RunningService("drafter_service", model, flags, logs)
            running.callback(service.kill)
            return service

        yield start


@pytest.fixture
def client(verifier: RunningService) -> Iterator[Client]:
    """A client of the shared verifier, which has no drafters before and after the test."""
    with Client(verifier.address, timeout=PATIENCE) as made:
        yield made
        for drafter in made.drafters.list():
            made.drafters.detach(drafter.name)
