"""A process's resources, and whether they grow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.process_usage import Trend, Usage, grew

_GROWS = """
import sys, threading
print(flush=True)
sys.stdin.readline()
files = [open(sys.argv[1] + str(number), "w") for number in range(5)]
held = b"x" * 50_000_000
threading.Thread(target=sys.stdin.readline).start()
print(flush=True)
"""
"""A process with nothing else to do: another one may free memory meanwhile."""


def test_the_trend_is_a_line_by_least_squares() -> None:
    assert Trend.of([0, 10, 20, 30], [5, 7, 9, 11]) == Trend(0.2, 6.0)
    assert Trend.of([0, 10, 20], [1, 4, 1]) == Trend(0.0, 0.0)
    assert Trend.of([3], [7]) == Trend(0.0, 0.0)


def test_what_leaks_grew_and_what_comes_and_goes_did_not() -> None:
    assert grew([10, 11, 12, 13, 14, 15, 16, 17])
    assert grew([10, 12, 10, 12, 13, 12, 13, 14])
    assert not grew([10, 12, 11, 12, 10, 12, 11, 12])
    assert not grew([10, 90, 10, 90, 50, 90, 10, 95])
    assert not grew([10])


@pytest.mark.processes
class TestUsage:
    def test_open_files_threads_and_memory_are_counted(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", _GROWS, str(tmp_path / "file")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            before = Usage.of(process.pid)
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            after = Usage.of(process.pid)
            process.stdin.close()
        assert before is not None and after is not None
        assert after.threads == before.threads + 1
        assert after.open_files == before.open_files + 5
        assert after.rss_bytes > before.rss_bytes + 25_000_000

    def test_a_process_that_has_ended_holds_nothing(self) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        while Usage.of(child) is not None:  # until it is a zombie
            pass
        os.waitpid(child, 0)
        assert Usage.of(child) is None
