"""A service as a child process: a verifier, a drafter, or a gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE, PATIENCE


class ServiceProcess:
    """A process that starts at once; `address` waits until it serves, so several can start in parallel."""

    start_seconds = LONG_PATIENCE
    """Time limit of a start: importing torch is slow on a busy machine."""
    listeners = 1
    """Number of the log's lines `listening` once it serves; the last one has its address."""

    def __init__(
        self,
        program: Sequence[str],
        flags: Sequence[str],
        logs: Path,
        *,
        popen: Callable[..., subprocess.Popen[Any]] = processes.Popen,
        environment: Mapping[str, str] | None = None,
        directory: Path = ROOT,
    ) -> None:
        """program: Python's arguments before the flags; the last one names the log. environment: by default the
        processes' own of tests."""
        self.log = logs / f"{program[-1]}-{time.monotonic_ns()}.log"
        with self.log.open("ab") as output:  # appends, so that it overwrites nothing that others append
            self.process = popen(
                [sys.executable, *program, "--listen", "127.0.0.1:0", "--log-format", "json", *flags],
                cwd=directory,
                env=os.environ | processes.ENVIRONMENT if environment is None else environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    @cached_property
    def address(self) -> str:
        """The HOST:PORT it serves on, once it serves. Raises RuntimeError."""
        deadline = time.monotonic() + self.start_seconds
        while True:
            listening = [event["address"] for event in self.events() if event["event"] == "listening"]
            if len(listening) == self.listeners:
                return str(listening[-1])
            if not self.alive:
                raise RuntimeError(f"it ended with {self.process.returncode}:\n{self.log.read_text(errors='replace')}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"it does not serve after {self.start_seconds:g} s; its log is {self.log}")
            time.sleep(0.02)

    def serving(self) -> Self:
        """Waits until it serves; returns itself. Raises RuntimeError."""
        assert self.address
        return self

    @property
    def url(self) -> str:
        """The address of a gateway."""
        return f"http://{self.address}"

    @property
    def socket_address(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def events(self) -> list[dict[str, Any]]:
        """Returns its log so far, without lines that are not JSON."""
        lines = self.log.read_text(errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]

    def kill(self) -> None:
        """Kills it, as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stops it gracefully and returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
