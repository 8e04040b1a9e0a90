"""Services of the bundled models as processes of tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.harness import processes
from tests.harness.checkout import MODELS
from tests.harness.service_process import ServiceProcess

STEADY_VERIFIER = "tests.harness.steady_verifier"


class RunningService(ServiceProcess):
    """A service of a bundled model."""

    def __init__(self, module: str, model: str, flags: tuple[str, ...], logs: Path) -> None:
        popen = partial(processes.Popen, spares=1 if "--tensor-parallel" in flags else 0)
        flags = ("--model", str(MODELS / model), "--threads", "1", *flags)
        super().__init__(["-m", module], flags, logs, popen=popen)

    @classmethod
    def of_another_worker(cls, pid: int, log: Path) -> RunningService:
        """A service that another worker of the run has started, and ends."""
        service = cls.__new__(cls)
        service.log = log
        service.process = ForeignProcess(pid)  # type: ignore[assignment]
        return service


class ForeignProcess:
    """The part of `subprocess.Popen` that needs no child."""

    returncode = None
    """Only its parent learns that."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """A status once it has ended, of which its parent alone knows the value."""
        return 1 if processes.ended(self.pid) else None


StartService = Callable[..., RunningService]
"""The type of `start_drafter("draft-early", "--kv-slots", "4096")`, which starts a service; the model is optional."""


class Loading(ServiceProcess):
    """A service that may use the hub, with any model."""

    def __init__(self, module: str, place: Path, *flags: str) -> None:
        environment = os.environ | processes.SERVICE_ENVIRONMENT | {"HF_HUB_OFFLINE": "0"}
        flags = ("--threads", "1", *flags)
        super().__init__(["-m", module], flags, place, popen=subprocess.Popen, environment=environment, directory=place)
