"""Parts of a request that were left out: a header of the response names them, and so does the log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from draftwire._types.quoting import shortened
from service_runtime.process.logs import get_logger

log = get_logger(__name__)

HEADER = "x-draftwire-left-out"
_MOST_NAMES, _MOST_NAME = 16, 64
_UNSENT = re.compile(r"[^!-+\--~]")
"""Characters that the header does not carry; a comma separates names."""


def with_left_out(response: Response, request: Request, names: Sequence[str]) -> Response:
    """Returns the response with the names of what was left out of its request, if anything was."""
    if names:
        told = [_UNSENT.sub("?", shortened(name, _MOST_NAME)) for name in names[:_MOST_NAMES]]
        if len(names) > _MOST_NAMES:
            told.append(f"...{len(names) - _MOST_NAMES}")
        response.headers[HEADER] = ", ".join(told)
        log.info("parts of a request left out", request_id=request.state.request_id, parts=told)
    return response
