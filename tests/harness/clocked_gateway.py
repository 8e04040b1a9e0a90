"""`python -m tests.harness.clocked_gateway`: a gateway whose keys follow a clock that the test sets.

By the machine's clock, a load that takes longer than a minute would get more than the quota of one.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from gateway_service import process
from gateway_service.keys.api_keys import ApiKeys

CLOCK = "TEST_CLOCK_FILE"
"""Variable with the name of a file that holds the time, in seconds of Unix time."""


def _now() -> float:
    return float(Path(os.environ[CLOCK]).read_text())


def main() -> int:
    """Runs the gateway; returns its exit status."""
    process.ApiKeys = partial(ApiKeys, clock=_now, now=_now)  # type: ignore[assignment, misc]
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
