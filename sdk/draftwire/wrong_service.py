"""Names the service that answers at an address where a call's method is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwire.errors import DraftwireError, UnimplementedError
from draftwire.methods import GENERATE, LOAD_MODEL, Method

KINDS = {GENERATE.service: "a verifier", LOAD_MODEL.service: "a drafter"}
"""Services by which a server is known, whose health it is asked for: it tells that of those it has, and of no other."""
_CONTRACT = "draftwire."


def is_missing(method: Method[Any, Any], error: DraftwireError) -> bool:
    """Return whether a server knows no such method of the contract; a service's own answers have a reason."""
    return method.service.startswith(_CONTRACT) and isinstance(error, UnimplementedError) and error.reason is None


def wrong_service(service: str, address: str, there: Mapping[str, bool], details: str) -> str:
    """Return what is to be said of an address.

    Args:
        service: full name of the service that was called; one that is no drafter's belongs to a verifier.
        address: where it was called.
        there: of each of ``KINDS`` whether the server has it.
        details: the words of the server.
    """
    wanted = service if service in KINDS else GENERATE.service
    found = [name for each, name in KINDS.items() if there[each]]
    if there[wanted]:
        said = f" ({details})" if details else ""
        return f"{address} is {KINDS[wanted]} without this call, and older than what calls it{said}"
    if found:
        return f"{address} is {found[0]}, not {KINDS[wanted]}"
    return f"what listens at {address} is not {KINDS[wanted]}"
