"""Python commands that run in forked processes: the request for one, and the `subprocess.Popen` that sends it."""

from __future__ import annotations

import inspect
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ASKED = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_LENGTH = struct.Struct("!I")
_STREAMS = 3
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_", "TORCHELASTIC_")
_READ_LATE = ("DRAFTWIRE_", "GRPC_", "PYTEST_", *_RANKS)
"""Prefixes of variables that no import reads. gRPC reads its own when it is initialised, which is after a fork."""
_WITHOUT_EFFECT = (
    "HF_TOKEN", "NO_MKDOCS_2_WARNING", "PYTHONPATH", "PYTHONUNBUFFERED", "OLDPWD", "PWD", "TORCHINDUCTOR_CACHE_DIR", "_"
)  # fmt: skip
"""Variables that make no difference: the hub's token is read with each request to it, the path has the same entries in
any order, logs are flushed line by line, mkdocs' theme sets its own in a process of tests that imports it, and torch
sets one, read late, in tests of its compiler."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that a service ignores if its number of threads is set."""


@dataclass(frozen=True)
class Start:
    """A Python command."""

    arguments: list[str]
    """Arguments of the interpreter: `-m MODULE ...`, `-c CODE ...`, or the path of a program and its own arguments."""
    environment: dict[str, str]
    directory: str
    new_session: bool = False
    spares: int = 0
    """Number of Python commands that the process itself runs, as the first of several ranks does."""


def send_start(connection: socket.socket, start: Start, streams: tuple[int, int, int]) -> None:
    """Sends a command with the descriptors of its standard streams."""
    body = pickle.dumps(start)
    socket.send_fds(connection, [_LENGTH.pack(len(body))], list(streams))
    connection.sendall(body)


def receive_start(connection: socket.socket) -> tuple[Start, list[int]] | None:
    """Receives the next command and its standard streams; returns None once the connection is closed."""
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, _STREAMS)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head)
    return pickle.loads(_exactly(connection, length)), streams


def send_pid(connection: socket.socket, pid: int) -> None:
    """Answers a command with the id of the process that runs it."""
    connection.sendall(_LENGTH.pack(pid))


def receive_pid(connection: socket.socket) -> int:
    """Receives the id of the process that runs a command. Raises EOFError if there is none."""
    pid: int = _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0]
    return pid


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(length - len(found))
        if not part:
            raise EOFError("the other process has ended")
        found += part
    return bytes(found)


def same_imports(start: Start, imported_with: Mapping[str, str]) -> bool:
    """Whether a command's environment agrees with that of a process on all variables that an import may read."""
    unread = {*_WITHOUT_EFFECT, *(_THREADS if "--threads" in start.arguments else ())}

    def read(variables: Mapping[str, str]) -> dict[str, str]:
        return {
            name: value for name, value in variables.items() if not name.startswith(_READ_LATE) and name not in unread
        }

    return read(start.environment) == read(imported_with)


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` that runs Python commands in forks where that is equivalent. Subclasses provide the fork."""

    def fork(self, start: Start, streams: tuple[int, int, int]) -> int | None:
        """Returns the process that runs a command, a child of this one; None if it must be started normally."""
        raise NotImplementedError

    def _execute_child(self, *arguments: Any) -> None:  # type: ignore[override]
        asked = _ASKED.bind(self, *arguments).arguments
        start = self._start(asked)
        given = tuple(
            place if asked[name] == -1 else asked[name]
            for place, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        )
        pid = None if start is None else self.fork(start, given)  # type: ignore[arg-type]
        if pid is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )

    def _start(self, asked: Mapping[str, Any]) -> Start | None:
        """Returns the command if it is a Python one and needs nothing that a fork cannot do."""
        if asked["shell"] or asked["executable"] or asked["preexec_fn"] or asked["pass_fds"]:
            return None
        command = asked["args"]
        if isinstance(command, (str, bytes, os.PathLike)):
            return None
        program, *arguments = (os.fspath(each) for each in command)
        if program != sys.executable or not (arguments[0] in ("-m", "-c") or arguments[0].endswith(".py")):
            return None
        return Start(
            arguments,
            dict(os.environ if asked["env"] is None else asked["env"]),
            os.fspath(asked["cwd"] or os.getcwd()),  # noqa: PTH109 as Popen takes it
            new_session=bool(asked["start_new_session"]),
        )


class SparePopen(ForkedPopen):
    """The `subprocess.Popen` of a forked process. The forks it may need were made before it ran, and wait."""

    waiting: list[tuple[int, socket.socket]] = []  # noqa: RUF012 one list per process

    @classmethod
    def close_all(cls) -> None:
        """Releases the waiting forks, in a fork of their parent."""
        for _, connection in cls.waiting:
            connection.close()
        cls.waiting.clear()

    def fork(self, start: Start, streams: tuple[int, int, int]) -> int | None:
        """Takes a waiting fork; returns None if there is none or the command's imports would differ."""
        if not self.waiting or not same_imports(start, os.environ):
            return None
        pid, connection = self.waiting.pop()
        with connection:
            send_start(connection, start, streams)
        return pid
