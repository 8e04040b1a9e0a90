"""Runs a gateway as a process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import processes
from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


class GatewayProcess:
    """A gateway's process. Reading `url` waits until it serves."""

    def __init__(self, log: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = processes.Popen(
                [sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", "--log-format", "json", *flags],
                cwd=ROOT,
                env=os.environ | processes.ENVIRONMENT | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def address(self) -> tuple[str, int]:
        deadline = time.monotonic() + PATIENCE
        while True:
            for event in self.events():
                if event["event"] == "listening":
                    host, _, port = event["address"].rpartition(":")
                    return host, int(port)
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"it does not serve:\n{self.log.read_text()}"
            time.sleep(0.05)

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


StartGateway = Callable[..., GatewayProcess]
"""The type of `start_gateway("--verifier", address)`, which starts a gateway's process."""
