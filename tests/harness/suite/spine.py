"""The services of a whole run: started by the worker that needs one first, used by all, ended by who started them.

Each service has a file in the run's directory, written under a lock, that names its process and its log. A worker that
uses any of them holds a shared lock until it ends; the worker that started some waits for an exclusive one before it
ends them.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from types import TracebackType

import pytest

from tests.harness.services import RunningService
from tests.harness.suite.run_directory import locked, run_directory

_processes: set[int] = set()


def spine_processes() -> frozenset[int]:
    """The services of the run that this process has started."""
    return frozenset(_processes)


class Spine:
    """A worker's view of the run's services."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._place = run_directory(factory) / "services"
        self._place.mkdir(exist_ok=True)
        self._uses = ExitStack()
        self._started: list[RunningService] = []

    def __enter__(self) -> Spine:
        self._uses.enter_context(locked(self._place / "used", shared=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._uses.close()
        if self._started:
            with locked(self._place / "used"):
                for service in self._started:
                    service.kill()
                    _processes.discard(service.pid)

    def service(self, module: str, model: str, *flags: str) -> RunningService:
        """Returns a service, which may still be starting. flags: those after `--model`."""
        name = sha256("\0".join((module, model, *flags)).encode()).hexdigest()[:16]
        noted = self._place / f"{name}.json"
        with locked(self._place / f"{name}.lock"):
            if noted.exists():
                found = json.loads(noted.read_text())
                for service in self._started:
                    if service.pid == found["pid"]:
                        return service
                return RunningService.of_another_worker(found["pid"], Path(found["log"]))
            service = RunningService(module, model, flags, self._place)
            _processes.add(service.pid)
            self._started.append(service)
            noted.write_text(json.dumps({"pid": service.pid, "log": str(service.log)}))
            return service
