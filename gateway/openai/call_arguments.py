"""The arguments of a call that the assistant made, as a conversation repeats them."""

from __future__ import annotations

import json

from gateway.http.errors import GatewayError


def check_arguments(param: str, arguments: str) -> None:
    """Raises GatewayError unless a call's arguments are a JSON object. param: the parameter that has them."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise GatewayError(f"{param}: is not a JSON object", param=param, code="invalid_value")
