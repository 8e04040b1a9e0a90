"""Waits for a device that never gets there, since the other of two ranks hangs, and then is killed.

    python -m tests.harness.engine.lost_rank

Rank 0 prints one line of JSON: what it is told in either case, and in how many seconds.
"""

from __future__ import annotations

import json
import time
from threading import Timer

from draftwire_core.engine.loading.rank_processes import RankProcesses
from draftwire_core.engine.model.ranks.rank_group import RankGroup, RankLostError

_TIMEOUT_SECONDS = 3.0


def awaited(ranks: RankGroup) -> tuple[str, float]:
    """What a wait that never ends is told."""
    started = time.monotonic()
    try:
        ranks.await_device(lambda: False)
    except RankLostError as error:
        return str(error), time.monotonic() - started
    return "", 0.0


def main() -> None:
    """Runs one of the ranks."""
    processes = RankProcesses.open(2, device="cpu", timeout_seconds=_TIMEOUT_SECONDS)
    if processes.ranks.rank:
        time.sleep(3600)
    done = iter([False, False, True])
    processes.ranks.await_device(lambda: next(done))
    hangs = awaited(processes.ranks)
    (other,) = processes._children
    Timer(0.2, other.kill).start()
    print(json.dumps([hangs, awaited(processes.ranks)]))
    processes.close()


if __name__ == "__main__":
    main()
