"""The services of a whole run: started by the worker that needs one first, used by all, ended by who started them.

Each service has a file in the run's directory, written under a lock, that names its process and its log. A worker that
uses any of them holds a shared lock until it ends; the worker that started some waits for an exclusive one before it
ends them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.harness import processes
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.suite.run_directory import locked, run_directory

_processes: set[int] = set()


def run_processes() -> frozenset[int]:
    """The services of the run that this process has started."""
    return frozenset(_processes)


class RunServices(Services):
    """A worker's view of the run's services. Each is started once in a run, whoever asks for it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__(run_directory(factory) / "services")
        self.logs.mkdir(exist_ok=True)
        self._uses = ExitStack()
        self._started: dict[str, ServiceProcess] = {}

    def __enter__(self) -> Self:
        self._uses.enter_context(locked(self.logs / "used", shared=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uses.close()
        if self._started:
            with locked(self.logs / "used"):
                super().__exit__(kind, error, trace)
                _processes.difference_update(service.pid for service in self._started.values())

    def start(self, program: str | Sequence[str], *flags: str, **options: Any) -> ServiceProcess:
        """Returns a service, which may still be starting."""
        name = sha256(json.dumps([program, flags, options]).encode()).hexdigest()[:16]
        noted = self.logs / f"{name}.json"
        with locked(self.logs / f"{name}.lock"):
            if name in self._started:
                return self._started[name]
            if noted.exists():
                return _Foreign(**json.loads(noted.read_text()))
            service = self._started[name] = super().start(program, *flags, **options)
            _processes.add(service.pid)
            noted.write_text(json.dumps({"pid": service.pid, "log": str(service.log)}))
            return service


class _Foreign(ServiceProcess):
    """A service that another worker of the run has started, and ends."""

    def __init__(self, pid: int, log: str) -> None:
        self.log = Path(log)
        self.process = _ForeignProcess(pid)  # type: ignore[assignment]


class _ForeignProcess:
    """The part of `subprocess.Popen` that needs no child."""

    returncode = None
    """Only its parent learns that."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """A status once it has ended, of which its parent alone knows the value."""
        return 1 if processes.ended(self.pid) else None
