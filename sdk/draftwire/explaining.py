"""Errors of calls, said for the person who made the call. What came over the wire stays in ``details``."""

from __future__ import annotations

import logging
from typing import Any

from draftwire.connection_words import describe_connection
from draftwire.errors import DraftwireError
from draftwire.field_names import name_parameters
from draftwire.methods import Method
from draftwire.shortened import shortened

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 2000
"""Characters of a message; a service may quote a name as long as it was sent."""


def explain(error: DraftwireError, method: Method[Any, Any], address: str, *, encrypted: bool) -> DraftwireError:
    """Return the error, with a message that names the SDK's parameters and says what befell the connection.

    Args:
        error: what a call failed with.
        method: what was called.
        address: where.
        encrypted: whether the call went by TLS.
    """
    log.debug("%s at %s: %s: %s", method.path, address, error.code.name, shortened(error.details, _LONGEST_MESSAGE))
    name_parameters(error, method.path)
    error.message = shortened(
        describe_connection(error, address, encrypted=encrypted) or error.message, _LONGEST_MESSAGE
    )
    return error
