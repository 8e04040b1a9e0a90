"""The API keys that requests must carry."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_service.http.errors import GatewayError

_PROTECTED = ("/v1/", "/tokenize", "/detokenize", "/metrics", "/console/api/")


class ApiKeys:
    """A set of keys, kept as digests of equal length, so that every comparison takes the same time."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Stores the digests of the keys."""
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        """Returns whether a key is required."""
        return bool(self._digests)

    def hold(self, key: str) -> bool:
        """Returns whether the key is in the set, after comparing it with every key."""
        digest = _digest(key)
        return any([hmac.compare_digest(digest, known) for known in self._digests])  # noqa: C419 - no early end


def read_key_file(path: str) -> list[str]:
    """Returns the keys of a file, one per line.

    Raises:
        ValueError: the file cannot be read, or contains no key.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} contains no key")
    return keys


class KeyCheck:
    """ASGI middleware that refuses requests without a key before their bodies are read."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        """app: the application to protect."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it."""
        if scope["type"] == "http" and self._keys and scope["path"].startswith(_PROTECTED):
            kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not self._keys.hold(key.strip()):
                error = GatewayError("a valid API key is required", status=401, code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
