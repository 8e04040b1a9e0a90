"""Runs services as processes, with the bundled models."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.harness import processes
from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
STEADY_VERIFIER = "tests.harness.steady_verifier"
START_SECONDS = 2 * PATIENCE
"""Time limit of a service's start: importing torch is slow on a busy machine."""


class RunningService:
    """A service's process. It starts at once; `address` waits until it serves, so several can start in parallel."""

    def __init__(self, module: str, model: str, flags: tuple[str, ...], logs: Path) -> None:
        self.log = logs / f"{module}-{Path(model).name}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = processes.Popen(
                [
                    sys.executable, "-m", module, "--model", str(MODELS / model), "--listen", "127.0.0.1:0",
                    "--threads", "1", "--log-format", "json", *flags,
                ],
                cwd=ROOT,
                env=os.environ | processes.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                spares=1 if "--tensor-parallel" in flags else 0,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @cached_property
    def address(self) -> str:
        """Returns the HOST:PORT it serves on."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            for event in self.events():
                if event["event"] == "listening":
                    return str(event["address"])
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"it does not serve after {START_SECONDS} s:\n{self.log.read_text()}"
            time.sleep(0.05)

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


StartService = Callable[..., RunningService]
"""The type of `start_drafter("draft-early", "--kv-slots", "4096")`, which starts a service; the model is optional."""


class Loading(RunningService):
    """A service that may use the hub, with any model."""

    def __init__(self, module: str, place: Path, *flags: str) -> None:
        self.log = place / f"{module}.log"
        kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", module, "--listen", "127.0.0.1:0", "--threads", "1", "--log-format", "json",
                    *flags,
                ],
                cwd=place,
                env=kept | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
