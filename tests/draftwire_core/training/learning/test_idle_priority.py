"""The priority of a learner."""

import os
import subprocess
import sys

import pytest

from tests.harness.waiting import LONG_PATIENCE

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux alone has it")]

CODE = """
import os, threading
from draftwire_core.training.learning.idle_priority import yield_to_others
yield_to_others()
found = []
thread = threading.Thread(target=lambda: found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))))
thread.start()
thread.join()
assert found == [(os.SCHED_IDLE, 19)], found
"""


def test_it_is_the_lowest_also_for_later_threads() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=LONG_PATIENCE)
