"""A gateway as a child process of a benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.checkout import ROOT

_START_SECONDS = 60.0


class GatewayProcess:
    """A gateway that starts at once; `url` waits until it serves."""

    def __init__(self, verifiers: Sequence[str], log: Path, *flags: str, listen: str = "127.0.0.1:0"):
        self._log = log
        named = [part for verifier in verifiers for part in ("--verifier", verifier)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway", *named, "--listen", listen, "--log-format", "json", *flags],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def url(self) -> str:
        """Returns the gateway's URL once it serves. Raises TimeoutError."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in self._log.read_text().splitlines():
                event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
                if event.get("event") == "listening":
                    return f"http://{event['address']}"
            time.sleep(0.05)
        raise TimeoutError(f"the gateway does not serve; its log is {self._log}")

    def stop(self) -> None:
        """Sends SIGTERM and waits until the gateway has finished its requests."""
        self._process.terminate()
        self._process.wait()
