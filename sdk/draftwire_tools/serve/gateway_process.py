"""The gateway as a child process."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.request
from pathlib import Path

from draftwire_tools.serve.ports import reachable
from draftwire_tools.service import Job

MODULE = "gateway_service"
_SECONDS = 2.0


class GatewayProcess(Job):
    """A child process that serves HTTP. It listens before the verifier serves, and is ready when that does."""

    def __init__(self, address: str, verifier: str, logs: Path, *flags: str, scheme: str = "http") -> None:
        """Starts it. address: to listen on. verifier: its address. scheme: http, or https with flags of TLS."""
        self.address = address
        self._scheme = scheme
        listen = ["--listen", address, "--verifier", verifier, "--log-format", "console"]
        super().__init__("gateway", ["-m", MODULE, *listen, *flags], logs)

    def is_listening(self) -> bool:
        """Returns whether it accepts connections.

        Raises:
            Failure: it has ended.
        """
        if self.ended is not None:
            raise self.failure(self.ended)
        host, _, port = reachable(self.address).rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _SECONDS):
                return True
        except OSError:
            return False

    def is_ready(self) -> bool:
        """Returns whether it serves.

        Raises:
            Failure: it has ended.
        """
        if self.ended is not None:
            raise self.failure(self.ended)
        # Whether it lives is asked here, not who it is; its certificate need not name this address.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        # No proxy, which would look on its own machine.
        https = urllib.request.HTTPSHandler(context=context)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        try:
            place = f"{self._scheme}://{reachable(self.address)}/health"
            with opener.open(place, timeout=_SECONDS) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False
