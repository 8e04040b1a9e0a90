"""`python -m tests.harness.fork_server DESCRIPTOR`: a process that imports the services' modules once and then forks.

Importing torch and transformers takes a service longer than all its work in most tests. This process imports them
once. For each request it forks, and the fork runs a module or a program as `python` would.

It only imports: when it forks, no gRPC channel, OpenMP team or thread exists. The requesting process adopts orphans
(see `tests.harness.processes`), and each fork is orphaned at once. So it becomes a child of the requesting process,
which can signal it and wait for it like any other child.

Nothing outlives the requesting process, however that ends: this process ends when the connection closes, and the kernel
kills each fork when its parent ends.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from tests.harness.started_process import SparePopen, Start, receive_start, send_pid

IMPORTS = (
    "drafter_service.process",
    "drafter_service.service",
    "draftwire.cli",
    "gateway_service.process",
    "draftwire_core.engine.in_process",
    "transformers.audio_utils",
    "transformers.generation.candidate_generator",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llama.tokenization_llama",
    "verifier_service.process",
    "verifier_service.service",
)
"""Modules that services import, all imported before the first fork."""
_PR_SET_PDEATHSIG = 1


def serve(connection: socket.socket) -> Start | None:
    """Forks for each command received. Returns the command in each fork, and None once the connection is closed."""
    requesting = os.getppid()
    while received := receive_start(connection):
        start, streams = received
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            service = os.fork()
            if service == 0:
                os.close(read)
                os.close(write)
                connection.close()
                while os.getppid() == between:
                    time.sleep(0.0005)
                _end_with(requesting)
                _take_streams(streams)
                return start
            os.write(write, b"%d" % service)
            os._exit(0)
        os.waitpid(between, 0)  # by now the service is an orphan that the requesting process has adopted
        send_pid(connection, int(os.read(read, 32)))
        for each in (read, write, *streams):
            os.close(each)
    return None


def become(start: Start) -> None:
    """Runs a command in this process, which was forked for it."""
    if start.new_session:
        os.setsid()
    parent = os.getpid()
    for _ in range(start.spares):
        ours, theirs = socket.socketpair()
        spare = os.fork()
        if spare == 0:
            _end_with(parent)
            ours.close()
            SparePopen.close_all()
            received = receive_start(theirs)
            theirs.close()
            if received is None:
                os._exit(0)
            start, streams = received
            _take_streams(streams)
            break
        theirs.close()
        SparePopen.waiting.append((spare, ours))
    else:
        if start.spares:
            subprocess.Popen = SparePopen  # type: ignore[misc, assignment]
    os.chdir(start.directory)
    os.environ.clear()
    os.environ.update(start.environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.orig_argv = [sys.executable, *start.arguments]
    if start.arguments[0] == "-m":
        sys.argv = start.arguments[1:]
        sys.path[0] = start.directory
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif start.arguments[0] == "-c":
        sys.argv = ["-c", *start.arguments[2:]]
        sys.path[0] = ""
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(start.arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = start.arguments
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def end(status: object) -> None:
    """Ends this process with the status of a SystemExit, as the interpreter does but without freeing what there is.

    That would copy most of what the fork shares, which takes a third of a second. Where a thread still runs, it returns
    and leaves it all to the interpreter, whose end such a thread may not survive. gRPC's own always runs.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    if any("_poll_wrapper" not in each.name for each in threading.enumerate() if each is not threading.main_thread()):
        return
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((status or 0) & 0xFF)


def _end_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends; ends it now if that has happened."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def _take_streams(streams: list[int]) -> None:
    for place, each in enumerate(streams):
        os.dup2(each, place)
        os.close(each)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 until the process ends
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _prepare() -> None:
    for each in IMPORTS:
        importlib.import_module(each)
    get_checkpoint_conversion_mapping("llama")  # built once per process, for all architectures
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a fork would lose {threads - 1} threads"
    gc.collect()
    gc.freeze()  # keeps pages shared with the forks from being written to


if __name__ == "__main__":
    asked = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the tests, which stop what they started
    _prepare()
    if (command := serve(asked)) is not None:
        try:
            become(command)
        except SystemExit as ended:
            end(ended.code)
            raise
        end(None)
