"""Parts of a request that were left out: a header of the response names them, and so does the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from draftwire._types.quoting import shortened
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)

HEADER = "x-draftwire-left-out"
VIOLATIONS = "x-draftwire-violations"
"""Header with what the calls of an answer violate of it."""
_MOST_NAMES, _MOST_NAME = 16, 128
_UNSENT = re.compile(r"[^!-+\--~]")
"""Characters that the header does not carry; a comma separates names."""


class LeftOut:
    """Collects what was left out of one request, and says so once, with the first bytes of its response."""

    def __init__(self, request: Request, names: Iterable[str] = ()) -> None:
        """names: the parts that are known to be left out."""
        self._request = request
        self._names = dict.fromkeys(names)

    def add(self, names: Iterable[str]) -> None:
        """Adds parts; those that are known already count once."""
        self._names |= dict.fromkeys(names)

    def tell(self, response: Response) -> None:
        """Names the parts in a header of the response, and in the log."""
        if not self._names:
            return
        parts = sendable(list(self._names))
        response.headers[HEADER] = ", ".join(parts)
        log.info("request parts left out", request_id=self._request.state.request_id, parts=parts)


def sendable(names: Sequence[str]) -> list[str]:
    """Returns names as a header carries them."""
    # No header value begins or ends with the space before an empty name.
    return [_UNSENT.sub("?", name) or '""' for name in told(names)]


def told(names: Sequence[str]) -> list[str]:
    """Returns the first names, shortened, and the number of the others."""
    first = [shortened(name, _MOST_NAME) for name in names[:_MOST_NAMES]]
    return first if len(names) <= _MOST_NAMES else [*first, f"...{len(names) - _MOST_NAMES}"]
