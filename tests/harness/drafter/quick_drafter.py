"""`python -m tests.harness.drafter.quick_drafter MARKER FLAGS`: a drafter that hardly times the models that it loads.

Once a file MARKER exists, loads hang instead, and nothing can interrupt them: they create the file MARKER.entered.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from drafter_service import process, service
from drafter_service.models.loading import Loaded, load_drafter
from draftwire_core.engine.loading import step_timing


def main() -> int:
    """Runs the drafter; returns its exit status."""
    step_timing._MOST_TIMES = 2
    marker = Path(sys.argv.pop(1))

    def load(*arguments: Any, **options: Any) -> Loaded:
        if marker.exists():
            marker.with_suffix(".entered").touch()
            time.sleep(600)
        return load_drafter(*arguments, **options)

    service.load_drafter = load  # type: ignore[attr-defined]
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
