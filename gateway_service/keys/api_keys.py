"""The API keys that requests must carry."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway_service.http.errors import GatewayError
from gateway_service.keys.account import Account
from gateway_service.keys.grant import CLIENT, Grant
from gateway_service.keys.key_file import KeyFile, NamedKey, digest_of
from gateway_service.observability.key_metrics import KeyMetrics

_OF_OPERATORS = ("/metrics", "/console/api/")
_PROTECTED = ("/v1/", "/tokenize", "/detokenize", *_OF_OPERATORS)
_COUNTED = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"})
"""Paths whose requests a verifier works for; these count for the limits of keys."""
RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")
)
"""The headers of responses to requests with a limited key."""


class ApiKeys:
    """The keys that are accepted: named ones of a file, with limits, and plain ones, without.

    They are kept as digests of equal length, so that every comparison takes the same time.
    """

    def __init__(
        self,
        plain: Iterable[str] = (),
        named: KeyFile | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """plain: keys without name and limits. clock: a clock in seconds with any origin. now: Unix time."""
        self._plain = [digest_of(key) for key in plain]
        self._named = named
        self._clock = clock
        self._now = now
        self._accounts: dict[str, Account] = {}
        """Accounts by name; one lasts as long as the gateway, whatever becomes of its key."""

    def __bool__(self) -> bool:
        """Returns whether a key is required."""
        return bool(self._plain) or self._named is not None

    def grant(self, key: str, metrics: KeyMetrics) -> Grant | None:
        """Returns the grant of a named key, and None for a plain one, after comparing with every key.

        Raises:
            GatewayError: the key is unknown or has expired.
        """
        digest = digest_of(key)
        found = self._find(digest)
        plain = any([hmac.compare_digest(digest, known) for known in self._plain])  # noqa: C419 - no early end
        if found is None:
            if plain:
                return None
            raise GatewayError("a valid API key is required", status=401, code="invalid_api_key")
        account = self._accounts.get(found.name)
        if account is None:
            account = self._accounts[found.name] = Account(found.name, self._clock, metrics)
        if found.expired(self._now()):
            error = GatewayError(f"the API key {found.name} has expired", status=401, code="expired_api_key")
            raise account.refused("expires", error)
        return Grant(found, account, lambda: self._valid(digest))

    def _valid(self, digest: bytes) -> NamedKey | None:
        found = self._find(digest)
        return None if found is None or found.expired(self._now()) else found

    def _find(self, digest: bytes) -> NamedKey | None:
        found: NamedKey | None = None
        named = {} if self._named is None else self._named.keys
        for known, key in named.items():
            if hmac.compare_digest(known, digest):
                found = key
        return found


def read_key_file(path: str) -> list[str]:
    """Returns the plain keys of a file, one per line.

    Raises:
        ValueError: the file cannot be read, or contains no key.
    """
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} contains no key")
    return keys


class KeyCheck:
    """ASGI middleware that refuses requests without a key, and those beyond its limit of requests, before their bodies
    are read. It leaves the request's grant in the state ``grant``."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, metrics: KeyMetrics) -> None:
        """app: the application to protect."""
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state, path = scope.setdefault("state", {}), scope["path"]
        state["grant"] = None
        if not (self._keys and path.startswith(_PROTECTED)):
            await self._app(scope, receive, send)
            return
        kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        try:
            grant = state["grant"] = self._keys.grant(key.strip() if kind.lower() == "bearer" else "", self._metrics)
        except GatewayError as error:
            await error.response()(scope, receive, send)
            return
        if grant is None:
            await self._app(scope, receive, send)
            return

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and path in _COUNTED:
                MutableHeaders(scope=message).update(grant.account.headers(grant.key))
            await send(message)

        before = CLIENT.set(grant.key.name)
        try:
            _check_path(path, grant)
        except GatewayError as error:
            await error.response()(scope, receive, tell)
        else:
            await self._app(scope, receive, tell)
        finally:
            CLIENT.reset(before)


def _check_path(path: str, grant: Grant) -> None:
    """Counts a request that counts, and refuses what is for operators only. Raises GatewayError."""
    if path.startswith(_OF_OPERATORS) and not grant.key.operator:
        message = f"the key {grant.key.name} may not use {path}: it is for operators (operator = true)"
        raise grant.account.refused("operator", GatewayError(message, status=403, code="operator_required"))
    if path in _COUNTED:
        grant.account.count_request(grant.key)
