"""A local stand-in for the Hugging Face hub: serves the repositories of a folder, or never answers."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Serves FOLDER/OWNER/NAME as the repository OWNER/NAME; other repositories do not exist."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, *, body: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        if path == "api/agent-harnesses":  # requested by the hub library itself
            self._answer(404, b"", {}, body)
            return
        self.server.requests.append(f"{self.command} {self.path}")
        if path.startswith("api/models/"):
            repository = "/".join(path.split("/")[2:4])
            place = self.server.folder / repository
            if not place.is_dir():
                self._answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"}, body)
                return
            files = [{"rfilename": str(file.relative_to(place))} for file in sorted(place.rglob("*")) if file.is_file()]
            model = {"id": repository, "sha": COMMIT, "siblings": files, "private": False}
            self._answer(200, json.dumps(model).encode(), {"Content-Type": "application/json"}, body)
            return
        owner, name, _, revision, file = path.split("/", 4)
        if revision not in ("main", COMMIT):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"}, body)
            return
        found = self.server.folder / owner / name / file
        if not found.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, body)
            return
        text = found.read_bytes()
        self._answer(200, text, {"ETag": f'"{hashlib.sha1(text).hexdigest()}"', "X-Repo-Commit": COMMIT}, body)

    def _answer(self, status: int, text: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def serving_hub(folder: Path) -> Iterator[HubServer]:
    """Runs a hub with the repositories of a folder."""
    server = HubServer(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class SilentHub:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def accept(self, seconds: float) -> socket.socket:
        """Accepts the next connection, whose request stays unanswered. Raises TimeoutError."""
        self._listener.settimeout(seconds)
        connection, _ = self._listener.accept()
        connection.settimeout(seconds)
        return connection

    def asked(self, what: str) -> list[socket.socket]:
        """Returns the waiting connections whose requests contain `what`; closes the others."""
        found = []
        try:
            while True:
                connection = self.accept(0.1)
                if what in connection.recv(1 << 16).decode():
                    found.append(connection)
                else:
                    connection.close()
        except TimeoutError:
            return found

    def close(self) -> None:
        self._listener.close()
