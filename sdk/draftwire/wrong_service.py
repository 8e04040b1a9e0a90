"""What answers at an address, where a call found that its method is not there."""

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


def describe_wrong_service(error: DraftwireError, service: str, address: str, there: Mapping[str, bool]) -> None:
    """Have the error say what is at the address.

    Args:
        error: what a call failed with.
        service: full name of the service that was called; one that is no drafter's belongs to a verifier.
        address: where it was called.
        there: of each of ``KINDS`` whether the server has it.
    """
    wanted = service if service in KINDS else GENERATE.service
    found = [name for each, name in KINDS.items() if there[each]]
    if there[wanted]:
        said = f" ({error.details})" if error.details else ""
        error.message = f"{address} is {KINDS[wanted]} without this call, and older than this client{said}"
    elif found:
        error.message = f"{address} is {found[0]}, not {KINDS[wanted]}"
    else:
        error.message = f"what listens at {address} is not {KINDS[wanted]}"
