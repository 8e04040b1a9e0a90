"""The verifier service with steps of a given time.

    python -m benchmarks.harness.stand_ins.paced_verifier --step-ms 40 --row-ms 0.5

All other flags are those of `python -m verifier_service`.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.harness.stand_ins.pace import pace
from verifier_service.process import main as serve


def main() -> int:
    """Serves until a signal ends it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--step-ms", type=float, required=True, help="time of a step in milliseconds")
    parser.add_argument("--row-ms", type=float, default=0.0, help="additional milliseconds per row")
    options, flags = parser.parse_known_args()
    pace(options.step_ms, options.row_ms)
    return serve(flags)


if __name__ == "__main__":
    sys.exit(main())
