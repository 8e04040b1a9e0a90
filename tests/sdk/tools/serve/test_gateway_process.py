"""Whether the gateway serves."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from draftwire_tools.serve.gateway_process import GatewayProcess
from tests.harness.waiting import PATIENCE


class Gateway(GatewayProcess):
    """A gateway whose process is none of ours."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._scheme = "http"

    @property
    def ended(self) -> int | None:
        return None


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Answers one request; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200, False),
        (b"", False),
    ],
)
def test_it_serves_if_it_says_so(answer: bytes, ready: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # is not asked
    with answering(answer) as address:
        assert Gateway(address).is_ready() is ready
