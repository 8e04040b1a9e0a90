"""A process that runs another engine, and speaks with the test in JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EngineProcess:
    """An engine's Python running a script. It prints messages, and goes on when it is told to."""

    def __init__(
        self,
        python: str,
        script: Path,
        order: Mapping[str, Any],
        log: Path,
        variables: Mapping[str, str],
        patience: float,
    ) -> None:
        """order: the script's only argument, as JSON. log: takes what it says on stderr. variables: of its environment.
        patience: longest wait for a message, in seconds."""
        self._log = log
        self._patience = patience
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, str(script), json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ | dict(variables),
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def log(self) -> str:
        """What it has said on stderr."""
        return self._log.read_text(errors="replace")

    def wait_for(self, field: str) -> dict[str, Any]:
        """Waits for its next message, which must have this field."""
        line = self._lines.get(timeout=self._patience)
        assert line, self.log[-6000:]
        message: dict[str, Any] = json.loads(line)
        assert field in message, message
        return message

    def go_on(self) -> None:
        """Tells it to go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Ends it and its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")
