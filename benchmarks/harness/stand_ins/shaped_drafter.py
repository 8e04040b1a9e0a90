"""The drafter service with trees of another shape, a useless drafter, no shares, or steps of a given time.

    python -m benchmarks.harness.stand_ins.shaped_drafter --width 1 --depth 4 --model models/draft --listen 127.0.0.1:0

All other flags are those of `python -m drafter_service`. The service, its conversations and its model are the real
ones; only the drafter is replaced.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from benchmarks.harness.stand_ins.lying_drafter import LyingDrafter
from benchmarks.harness.stand_ins.pace import pace
from benchmarks.harness.stand_ins.slow_drafter import SlowDrafter
from benchmarks.harness.stand_ins.stalled_drafter import StalledDrafter
from drafter_service.conversation import draft_loop
from drafter_service.models import serving_model
from drafter_service.process import main as serve
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.kv.fair_shares import SOLE, ServedVerifier

_INSTEAD = {"lying": LyingDrafter, "stalled": StalledDrafter}


def main() -> int:
    """Serves until a signal ends it; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--width", type=int, default=3, help="most children of a node")
    parser.add_argument(
        "--depth", type=int, help="nodes below the last committed token on each path, whatever their probability"
    )
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="milliseconds to sleep before each drafting step")
    parser.add_argument("--instead", choices=_INSTEAD, help="stand-in that drafts instead of the model")
    parser.add_argument(
        "--first-come", action="store_true", help="do not tell verifiers apart, so that none has a share"
    )
    parser.add_argument("--step-ms", type=float, default=0.0, help="time of a step in milliseconds, see `pace`")
    parser.add_argument("--row-ms", type=float, default=0.0, help="additional milliseconds per row")
    options, flags = parser.parse_known_args()
    if options.step_ms or options.row_ms:
        pace(options.step_ms, options.row_ms)
    shape: dict[str, float] = {"width": options.width}
    if options.depth is not None:
        shape |= {"depth": options.depth, "credit_worth": 0.0}
    # No user needs this, so the service has no settings for it: the parts are replaced where they are assembled.
    serving_model.TreeGrowth = partial(TreeGrowth, **shape)
    if options.first_come:
        draft_loop.ServedVerifier = _nobody
    if options.instead:
        serving_model.DraftModelDrafter = _INSTEAD[options.instead]
    elif options.sleep_ms:
        serving_model.DraftModelDrafter = partial(SlowDrafter, seconds=options.sleep_ms / 1e3)
    return serve(flags)


def _nobody(name: str, weight: float, stream: int) -> ServedVerifier:
    return SOLE


if __name__ == "__main__":
    sys.exit(main())
