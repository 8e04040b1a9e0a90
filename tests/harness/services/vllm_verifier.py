"""A verifier with `--engine vllm`, in an environment that has vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.peers.vllm_environment import vllm_environment, vllm_variables
from draftwire import Client
from tests.harness.checkout import MODELS, ROOT
from tests.harness.services.service_process import ServiceProcess
from tests.harness.waiting import LONG_PATIENCE

VLLM_ARGUMENTS = (
    "--enforce-eager",
    *("--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(256 * 1024 * 1024)),
)
"""Arguments of vLLM: several of them, each with a small cache, have room on one machine."""


def serving_variables() -> dict[str, str]:
    """Returns the variables of a process that serves with vLLM."""
    # Of one core, since OpenMP's threads spin, and clients and drafters have need of the others.
    variables = vllm_variables(vllm_environment(), str(min(os.sched_getaffinity(0))))
    del variables["VLLM_ENABLE_V1_MULTIPROCESSING"]  # AsyncLLM has processes of its own
    variables["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes minutes, also of what computes log-probabilities
    variables["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = "86400"  # by default vLLM ends if it is suspended for 300 s
    return variables


class VllmVerifier(ServiceProcess):
    """A verifier's process, with those of its vLLM."""

    start_seconds = 1500.0
    listeners = 2  # the pool inside vLLM is the first one

    def __init__(
        self,
        flags: Sequence[str],
        logs: Path,
        variables: Mapping[str, str] | None = None,
        *,
        dtype: str = "float32",
        engine: Sequence[str] = (),
    ) -> None:
        """flags: of the verifier, its model among them. variables: added to its environment. engine: further arguments
        of vLLM."""

        def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
            assert command[0] == sys.executable
            own = ("--", *VLLM_ARGUMENTS, "--dtype", dtype, *engine)
            arguments = [str(vllm_environment().python), *command[1:], *own]
            return subprocess.Popen(arguments, **options, start_new_session=True)

        super().__init__(
            ["-m", "verifier_service"],
            ("--engine", "vllm", *flags),
            logs,
            popen=popen,
            environment=os.environ | serving_variables() | (variables or {}),
            directory=ROOT,
        )

    def kill(self) -> None:
        """Kills it and the processes of its vLLM, as the loss of its host would."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def vllm_client(logs: Path, engine: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[Client]:
    """Yields a client of a verifier of the bundled target, which ends with the block, and well. For the arguments see
    VllmVerifier."""
    flags = ("--model", str(MODELS / "target"), "--max-sequences", "4")
    service = VllmVerifier(flags, logs, variables, engine=engine)
    try:
        with Client(service.serving().address, timeout=LONG_PATIENCE) as client:
            yield client
    finally:
        service.process.terminate()
        status = service.process.wait(LONG_PATIENCE)
    assert status == 0
