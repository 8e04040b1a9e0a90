"""The grant of a request that carries a named key."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from draftwire._types.quoting import shortened
from gateway_service.http.errors import GatewayError
from gateway_service.keys.account import Account
from gateway_service.keys.key_file import NamedKey

CLIENT: ContextVar[str | None] = ContextVar("draftwire_gateway_client", default=None)
"""Name of the key of the current request, under which verifiers count its calls; None without a named key."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The permission of a request, by its key, and the account that it is counted in."""

    key: NamedKey
    """The key as it was when the request came."""
    account: Account
    current: Callable[[], NamedKey | None]
    """Returns the key as it is now; None if it has been removed or has expired."""

    def check_model(self, *names: str) -> None:
        """Checks that the key permits a model. names: the name in the request, and the model's first one.

        Raises:
            GatewayError: it does not.
        """
        if not self.key.permits(*names):
            message = f"the key {self.key.name} does not permit the model {shortened(names[0])!r}"
            error = GatewayError(message, status=403, param="model", code="model_not_allowed")
            raise self.account.refused("models", error)

    def check_again(self, *names: str) -> None:
        """Checks that a running request may continue. names: as for `check_model`.

        Raises:
            GatewayError: the key has been removed, has expired, or permits the model no longer.
        """
        now = self.current()
        if now is None or not now.permits(*names):
            error = GatewayError("the API key has been withdrawn or has expired", status=401, code="invalid_api_key")
            raise self.account.refused("withdrawn", error)
