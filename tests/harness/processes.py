"""Starts processes without the seconds that imports take in Python commands.

`Popen` and `run` are those of `subprocess`. A Python command runs in a fork of a process that has done the imports;
each process that starts commands has one such fork server. If a variable that an import may read differs, the command
starts the normal way. Tests of service start-up use `subprocess` itself, and so do benchmarks that measure: forks share
pages.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.harness.checkout import ROOT
from tests.harness.started_process import ForkedPopen, Start, receive_pid, same_imports, send_start

_CHECKOUT = (str(ROOT), str(ROOT / "sdk"))
_BEFORE = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each not in _CHECKOUT]
"""Packages may be found by this variable alone, as those that `scripts/first_gpu.sh` extracts."""
SERVICE_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([*_CHECKOUT, *_BEFORE]),
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # a service sets this itself, but in a fork OpenMP has already read it
}
"""Variables of services in tests and benchmarks, added to those of the process that starts them."""
ENVIRONMENT = SERVICE_ENVIRONMENT | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables of all processes of tests: those of services, and one thread each."""
_PR_SET_CHILD_SUBREAPER = 36


class _ForkServer:
    """The connection to the fork server, which starts with the first command that needs it."""

    def __init__(self) -> None:
        self.environment = os.environ | ENVIRONMENT
        self.pid: int | None = None
        self._connection: socket.socket | None = None

    def start(self, start: Start, streams: tuple[int, int, int]) -> int:
        """Runs a command in a process that becomes a child of this one. The first call waits for the imports."""
        if self._connection is None:
            self._connection = self._open()
        send_start(self._connection, start, streams)
        return receive_pid(self._connection)

    def _open(self) -> socket.socket:
        # Orphaned descendants become children of this process, as forks of the fork server do.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.fork_server", str(theirs.fileno())],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = process.pid
        atexit.register(process.wait)
        atexit.register(ours.close)  # runs first, which ends the process
        return ours


_SERVER = _ForkServer()


def shared_processes() -> frozenset[int]:
    """The fork server, which works for all tests of this process."""
    return frozenset() if _SERVER.pid is None else frozenset({_SERVER.pid})


def ended(pid: int) -> bool:
    """Whether a process has ended, even if nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Popen(ForkedPopen):
    """`subprocess.Popen`, in a fork where that is equivalent.

    spares: number of Python commands that the process runs itself, which are then forks as well.
    """

    def __init__(self, *arguments: Any, spares: int = 0, **options: Any) -> None:
        self._spares = spares
        super().__init__(*arguments, **options)

    def fork(self, start: Start, streams: tuple[int, int, int]) -> int | None:
        """Forks the fork server; returns None if the command's imports would differ."""
        if not same_imports(start, _SERVER.environment):
            return None
        return _SERVER.start(replace(start, spares=self._spares), streams)


def run(
    command: Any,
    *,
    input: Any = None,
    timeout: float,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`, in a fork where that is equivalent."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options |= {"stdin": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done
