"""A process's resources, and whether they grow."""

import os
import threading
from pathlib import Path

from benchmarks.harness.process_usage import Trend, Usage, grew


def test_open_files_threads_and_memory_are_counted(tmp_path: Path) -> None:
    before = Usage.of(os.getpid())
    assert before is not None
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    files = [(tmp_path / str(number)).open("w") for number in range(5)]
    held = b"x" * 50_000_000
    after = Usage.of(os.getpid())
    assert after is not None
    assert after.threads == before.threads + 1
    assert after.open_files == before.open_files + 5
    assert after.rss_bytes > before.rss_bytes + len(held) // 2
    done.set()
    thread.join()
    for file in files:
        file.close()


def test_a_process_that_has_ended_holds_nothing() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    while Usage.of(child) is not None:  # until it is a zombie
        pass
    os.waitpid(child, 0)
    assert Usage.of(child) is None


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
