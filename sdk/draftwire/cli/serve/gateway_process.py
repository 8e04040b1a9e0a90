"""The gateway as a child process."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from draftwire.cli.service import Job

MODULE = "gateway"
_SECONDS = 2.0


class GatewayProcess(Job):
    """A child process that serves HTTP, ready when it and its verifier are healthy."""

    def __init__(self, address: str, verifier: str, logs: Path) -> None:
        """Starts it. address: to listen on. verifier: address of the verifier."""
        self.address = address
        flags = ["--listen", address, "--verifier", verifier, "--log-format", "console"]
        super().__init__("gateway", ["-m", MODULE, *flags], logs)

    def is_ready(self) -> bool:
        """Returns whether it serves.

        Raises:
            Failure: it has ended.
        """
        if self.ended is not None:
            raise self.failure(self.ended)
        host, _, port = self.address.rpartition(":")
        local = "127.0.0.1" if host in ("0.0.0.0", "[::]", "") else host
        try:
            with urllib.request.urlopen(f"http://{local}:{port}/health", timeout=_SECONDS) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
