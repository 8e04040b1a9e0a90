"""The keys that requests have to bring."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import GatewayError

_PROTECTED = ("/v1/", "/tokenize", "/detokenize", "/metrics", "/console/api/")


class ApiKeys:
    """Keys, kept as digests of equal length: comparing takes the same time whatever is compared."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Take the keys."""
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        """True when a key is asked for."""
        return bool(self._digests)

    def hold(self, key: str) -> bool:
        """Return whether this is one of them, after comparing it with each."""
        digest = _digest(key)
        return any([hmac.compare_digest(digest, known) for known in self._digests])  # noqa: C419 - no early end


def read_key_file(path: str) -> list[str]:
    """Return the keys of a file, one a line.

    Raises:
        ValueError: the file cannot be read, or has no key.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} has no key")
    return keys


class KeyCheck:
    """ASGI middleware: refuses requests without a key, before their bodies are read."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        """Stand before `app`."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and self._keys and scope["path"].startswith(_PROTECTED):
            kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not self._keys.hold(key.strip()):
                error = GatewayError("a valid API key is required", status=401, code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
