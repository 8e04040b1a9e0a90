"""A child process that runs a peer. It is stopped while others are measured, so that its waiting costs them nothing."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.catalogue import Peer, Setting
from benchmarks.peers.environment import PLACE, PeerUnavailable
from draftwire_tools.turns import Arrival, Batch, Request

_LOAD_SECONDS = 900.0  # exports, compiles and loads
_REQUEST_SECONDS = 600.0
_STOP_SECONDS = 20.0
_FREE_BYTES = 3 << 30


def _free_memory() -> int:
    """Returns the bytes of memory available to a new process."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@dataclass(frozen=True)
class PeerBatch(Batch):
    """One request of a peer."""

    held: tuple[float, ...] = ()
    """Seconds of each call of the proposer that the engine waits in, one a step; empty if it is not timed."""
    drafted: int = 0
    """Draft tokens of all these calls."""

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted, if calls are timed: each step has one token that nobody drafted."""
        return sum(map(len, self.token_ids)) - len(self.held)


class PeerProcess:
    """A process that is controlled by JSON lines (runners/answering.py)."""

    def __init__(self, peer: Peer, threads: int, cores: Sequence[int]):
        """Starts the process on `cores`; nothing is loaded yet. Raises PeerUnavailable if there is too little
        memory."""
        if _free_memory() < _FREE_BYTES:
            raise PeerUnavailable(f"less than {_FREE_BYTES >> 30} GiB of memory are free")
        (PLACE / "models").mkdir(parents=True, exist_ok=True)
        (PLACE / "logs").mkdir(exist_ok=True)
        descriptor, log = tempfile.mkstemp(".log", f"{peer.name.split()[0]}-", PLACE / "logs")
        self.log = Path(log)
        self._pauses = peer.pauses
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_"))}
        with open(descriptor, "wb") as output:  # noqa: PTH123  a descriptor has no path
            self._process = subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, cores)), str(peer.python()), "-m", peer.runner],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=environment | peer.variables(threads, list(cores)),
                start_new_session=True,
            )
        self._replies: queue.Queue[str] = queue.Queue(maxsize=4)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._process.pid

    def load(self, order: dict[str, Any]) -> str:
        """Loads the models; returns a note on their precision. Raises PeerUnavailable."""
        about = str(self._ask(order, _LOAD_SECONDS)["about"])
        self._pause()
        return about

    def generate(self, prompt: Sequence[int], max_tokens: int, setting: Setting) -> PeerBatch:
        """Runs a request. Raises PeerUnavailable."""
        if self._pauses:
            self._signal(signal.SIGCONT)
        request = {"prompt": list(prompt), "max_tokens": max_tokens, "setting": dict(setting)}
        reply = self._ask(request, _REQUEST_SECONDS)
        self._pause()
        tokens, seconds, decoded = tuple(reply["token_ids"]), reply["seconds"], reply["decode_tokens"]
        first = Arrival(seconds - reply["decode_seconds"], len(tokens) - decoded)
        return PeerBatch((Request((first, Arrival(seconds, decoded)), tokens),), tuple(reply["held"]), reply["drafted"])

    def stop(self) -> None:
        """Ends the process and everything that it has started."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            print(f"{self.log}: the process had already ended", file=sys.stderr)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"{self.log}: the process does not end and is killed", file=sys.stderr)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def _pause(self) -> None:
        if self._pauses:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # all of it has ended, which shows as a missing answer

    def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            raise PeerUnavailable(f"no answer in {seconds:.0f} s; log {self.log}") from None
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerUnavailable(f"its process has ended, {self._end()}: {self._last_words()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerUnavailable(f"{reply['error']} (log {self.log})")
        return reply

    def _end(self) -> str:
        status = self._process.wait(_STOP_SECONDS)
        return signal.strsignal(-status) or str(status) if status < 0 else f"status {status}"

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (log {self.log})"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put("")
