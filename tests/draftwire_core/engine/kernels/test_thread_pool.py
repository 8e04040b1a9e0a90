"""The thread pool of compiled code: every item is done once, for any number of callers and threads."""

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from draftwire_core.engine.kernels.library import library, loaded
from draftwire_core.engine.kernels.structs import TASK

pytestmark = [pytest.mark.processes, pytest.mark.skipif(library() is None, reason="not built: there is no C compiler")]


def shared(count: int, least: int, threads: int) -> list[tuple[int, int, int]]:
    """Returns the pieces that were done: first item, end, and thread id."""
    done: list[tuple[int, int, int]] = []
    task = TASK(lambda work, first, last, thread_id: done.append((first, last, thread_id)))
    loaded().draftwire_parallel_for(task, None, count, least, threads)
    return done


def all_done_once(count: int, least: int, threads: int) -> bool:
    done = shared(count, least, threads)
    times = Counter(item for first, last, _ in done for item in range(first, last))
    return times == Counter(range(count)) and all(0 <= thread_id < threads for _, _, thread_id in done)


@pytest.mark.parametrize("threads", [1, 2, 3, 40])
@pytest.mark.parametrize("least", [0, 1, 7, 1000])
@pytest.mark.parametrize("count", [0, 1, 2, 10, 333])
def test_everything_is_done_once(count: int, least: int, threads: int) -> None:
    assert all(all_done_once(count, least, threads) for _ in range(3))


def test_little_work_is_done_by_the_caller() -> None:
    assert shared(19, 10, 4) == [(0, 19, 0)]


def test_no_piece_but_the_last_is_too_small_to_be_worth_it() -> None:
    pieces = sorted(shared(100, 8, 3))
    assert len(pieces) > 3 and all(last - first >= 8 for first, last, _ in pieces[:-1])


def test_more_callers_than_pools() -> None:
    def repeat(caller: int) -> bool:
        return all(all_done_once(50 + call, 1, 1 + (caller + call) % 6) for call in range(30))

    with ThreadPoolExecutor(9) as callers:
        assert all(callers.map(repeat, range(9)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_has_workers_of_its_own() -> None:
    assert all_done_once(50, 1, 4)
    child = os.fork()
    if not child:
        signal.alarm(30)  # a hanging child is a failure
        os._exit(0 if all(all_done_once(50, 1, 4) for _ in range(5)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all_done_once(50, 1, 4)
