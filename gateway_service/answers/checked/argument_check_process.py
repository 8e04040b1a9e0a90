"""The process in which arguments of calls are checked against schemas, both of which may be hostile.

For each line of standard input, `{"schema": ..., "arguments": TEXT}`, it writes one with the place in the schema that
the arguments violate: `{"place": TEXT, "reason": ""}`. The place is empty if they violate none. The reason says why
they could not be checked. The parent ends the process when it takes too long.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs

MOST_MEMORY = 256 << 20
"""Bytes of memory that checks may take."""
_BACKTRACKS, _PATTERN_BYTES = 100_000, 1 << 20
"""Limits of one pattern: steps back for a text, and bytes of the compiled pattern."""
_MOST_PLACE = 4096
"""Characters of a place that are written: the parent reads lines of at most 64 KiB."""
_STATM = Path("/proc/self/statm")


def violated(schema: Any, arguments: str) -> tuple[str, str]:
    """Returns the place in a schema that a call's arguments violate, and why they could not be checked; empty texts if
    they are valid. Formats are annotations."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return "(not JSON)", ""
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            validate_formats=False,
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(_BACKTRACKS, _PATTERN_BYTES, _PATTERN_BYTES),
        )
        for error in validator.iter_errors(value):
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded):
                return "", "a pattern takes too many steps"
            return ".".join(map(str, error.schema_path)) or "(false)", ""
    except (ValueError, RecursionError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return "", "the schema is not valid"
    return "", ""


def main() -> None:
    """Checks until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway handles Ctrl-C and ends this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _STATM.exists():  # only Linux has it; elsewhere memory is not limited
        space = int(_STATM.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (space + MOST_MEMORY, hard))
    print(flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        place, reason = violated(asked["schema"], asked["arguments"])
        print(json.dumps({"place": place[:_MOST_PLACE], "reason": reason}), flush=True)


if __name__ == "__main__":
    main()
