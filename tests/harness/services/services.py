"""The services of a test: verifiers, drafters and gateways, as processes or in the test's own.

The fixture `services` ends what it started with the test, `module_services` with the module, and `run_services` with
the run. In-process ones have no ports; each ends with its `async with` block.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.harness import processes
from tests.harness.checkout import MODELS, ROOT
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.vllm_verifier import VllmVerifier
from tests.harness.suite.engines import ON_VLLM

if TYPE_CHECKING:
    from tests.harness.services.in_process_drafter import InProcessDrafter
    from tests.harness.services.in_process_verifier import InProcessVerifier

STEADY_VERIFIER = "tests.harness.steady_verifier"
"""A verifier for which drafting pays, whatever a row costs on this processor."""


class Services:
    """Starts services, and ends them with the `with` block."""

    def __init__(self, logs: Path) -> None:
        """logs: directory of the processes' logs."""
        self.logs = logs
        self._running = ExitStack()

    def verifier(
        self, model: str | Path = "target", *flags: str, program: str = STEADY_VERIFIER, **options: Any
    ) -> ServiceProcess:
        """Starts a verifier, with one compute thread unless the flags say otherwise.

        model: name of a bundled model, or a directory. program: the module that runs as the verifier. options: of
        `start`.
        """
        threads = () if _on_vllm(program) else ("--threads", "1")
        return self.start(program, "--model", str(MODELS / model), *threads, *flags, **options)

    def drafter(
        self, model: str | Path = "draft", *flags: str, program: str = "drafter_service", **options: Any
    ) -> ServiceProcess:
        """Starts a drafter, like `verifier`."""
        return self.verifier(model, *flags, program=program, **options)

    def gateway(self, *flags: str, **options: Any) -> ServiceProcess:
        """Starts a gateway."""
        return self.start("gateway_service", *flags, **options)

    def start(
        self,
        program: str | Sequence[str],
        *flags: str,
        hub: bool = False,
        variables: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> ServiceProcess:
        """Starts a service and returns at once; its `address` waits until it serves.

        program: a module, or Python's arguments before the flags. hub: whether it may use a model hub; it then runs in
        the directory of the logs. variables: added to its environment. forked: False for a service whose own imports
        or process group matter.
        """
        if _on_vllm(program):
            return self._kept(VllmVerifier(flags, self.logs, variables))
        environment = os.environ | processes.ENVIRONMENT | ({"HF_HUB_OFFLINE": "0"} if hub else {}) | (variables or {})
        spares = 1 if "--tensor-parallel" in flags else 0
        service = ServiceProcess(
            ["-m", program] if isinstance(program, str) else program,
            flags,
            self.logs,
            popen=partial(processes.Popen, spares=spares) if forked and not hub else subprocess.Popen,
            environment=environment,
            directory=self.logs if hub else ROOT,
        )
        return self._kept(service)

    def _kept(self, service: ServiceProcess) -> ServiceProcess:
        self._running.callback(service.kill)
        return service

    def in_process_verifier(self, checkpoint: Path, **options: Any) -> AbstractAsyncContextManager[InProcessVerifier]:
        """Runs a verifier in this process. options: of `in_process_verifier`."""
        from tests.harness.services.in_process_verifier import in_process_verifier

        return in_process_verifier(checkpoint, **options)

    def in_process_drafter(self, checkpoint: Path, **options: Any) -> AbstractAsyncContextManager[InProcessDrafter]:
        """Runs a drafter in this process. options: of `in_process_drafter`."""
        from tests.harness.services.in_process_drafter import in_process_drafter

        return in_process_drafter(checkpoint, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()


def _on_vllm(program: str | Sequence[str]) -> bool:
    return ON_VLLM and program == STEADY_VERIFIER
