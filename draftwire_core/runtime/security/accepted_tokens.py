"""The tokens that a service accepts, with their roles."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from draftwire._auth.bearer_token import checked_token
from draftwire._auth.security import ON_BEHALF_OF
from draftwire._auth.watched_files import WatchedFiles
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.table_file import check_name, read_tables
from draftwire_core.runtime.security.caller import Caller
from draftwire_core.runtime.security.roles import Role, roles_of

LEAST_TOKEN_LENGTH = 16
"""Least number of characters of a token; a shorter one could be guessed."""

_SCHEME = "bearer "
_MAY_NAME = frozenset({Role.GATEWAY, Role.ADMIN})
"""Roles that may name the client that a call is for."""


class _Entry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    token: SecretStr | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    roles: frozenset[Role] = Field(min_length=1)
    max_requests: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_secret(self) -> "_Entry":
        if (self.token is None) == (self.sha256 is None):
            raise ValueError("needs either token or sha256")
        if self.token is not None:
            secret = checked_token(self.token.get_secret_value())
            if len(secret) < LEAST_TOKEN_LENGTH:
                raise ValueError(f"token: needs at least {LEAST_TOKEN_LENGTH} characters")
        return self

    @property
    def digest(self) -> bytes:
        if self.sha256 is not None:
            return bytes.fromhex(self.sha256)
        assert self.token is not None
        return _digest(self.token.get_secret_value())


@dataclass(frozen=True)
class _Known:
    digest: bytes = field(repr=False)
    caller: Caller


class AcceptedTokens:
    """Identifies callers by their tokens, from a TOML file with one table per caller:

        [alice]
        sha256 = "9f86d0..."   # or token = "the token itself"
        roles = ["generate"]

    The file is read again when it changes. Only digests are kept, and they are compared in constant time.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises ValueError, naming the file but never showing a token, when the file cannot be used."""
        self._path = Path(path)
        self._file = WatchedFiles([path], self._read)

    def check(self, method: str, metadata: Sequence[tuple[str, str | bytes]]) -> Caller | None:
        """Returns the caller of `method`, with the client that it names if it is a gateway; None if everybody may call
        the method.

        Raises ServiceError: UNAUTHENTICATED without a known token, ROLE_MISSING if its roles do not suffice for the
        method or for naming a client, INVALID_FIELD if the client's name is none.
        """
        needed = roles_of(method)
        if not needed:
            return None
        caller = self._find(_bearer(metadata))
        _need(caller, needed, "this call requires")
        client = _value(metadata, ON_BEHALF_OF)
        if client is None:
            return caller
        _need(caller, _MAY_NAME, "naming the client of a call requires")  # others could escape their limits by it
        try:
            check_name(client, "client", f"metadata {ON_BEHALF_OF}")
        except ValueError as error:
            reason = ErrorReason.ERROR_REASON_INVALID_FIELD
            raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, reason, str(error)) from None
        return replace(caller, client=client)

    @property
    def version(self) -> object:
        """Version of the file: a new object after each change."""
        return self._file.get()

    def _find(self, token: str) -> Caller:
        digest = _digest(token)
        found: Caller | None = None
        for known in self._file.get():  # compare all, so that the time reveals nothing
            if hmac.compare_digest(known.digest, digest):
                found = known.caller
        if found is None:
            raise _unauthenticated("the token is unknown to this service")
        return found

    def _read(self) -> tuple[_Known, ...]:
        entries = read_tables(self._path, _Entry, "caller", empty=": every call would be refused", secret=True)
        known: dict[bytes, _Known] = {}
        for name, entry in entries.items():
            check_name(name, "caller", self._path)
            if entry.digest in known:
                other = known[entry.digest].caller.name
                raise ValueError(f"{self._path}: {other} and {name} have the same token")
            caller = Caller(name, entry.roles, entry.max_requests, entry.max_tokens)
            known[entry.digest] = _Known(entry.digest, caller)
        return tuple(known.values())


def _need(caller: Caller, roles: frozenset[Role], what: str) -> None:
    """Raises ServiceError unless the caller has one of the roles."""
    if not roles & caller.roles:
        names = " or ".join(sorted(roles))
        raise ServiceError(
            grpc.StatusCode.PERMISSION_DENIED,
            ErrorReason.ERROR_REASON_ROLE_MISSING,
            f"the token of {caller.name} lacks the role that {what}: {names}",
            metadata={"role": names},
        )


def _value(metadata: Sequence[tuple[str, str | bytes]], name: str) -> str | None:
    """Returns the first value of a name in a call's metadata."""
    return next((value for key, value in metadata if key == name and isinstance(value, str)), None)


def _bearer(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    """Returns the token in a call's metadata. Raises ServiceError."""
    value = _value(metadata, "authorization") or ""
    if value[: len(_SCHEME)].lower() != _SCHEME:
        raise _unauthenticated("this service requires a token: metadata `authorization: Bearer TOKEN`")
    return value[len(_SCHEME) :].strip()


def _unauthenticated(message: str) -> ServiceError:
    return ServiceError(grpc.StatusCode.UNAUTHENTICATED, ErrorReason.ERROR_REASON_UNAUTHENTICATED, message)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
