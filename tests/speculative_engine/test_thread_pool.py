"""Workers in compiled code: everything is done, once, whoever calls and however many come."""

import ctypes
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from speculative_engine.kernels import library as compiled_library

pytestmark = pytest.mark.skipif(compiled_library.library() is None, reason="not built: there is no C compiler")

_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)


def shared(count: int, least: int, threads: int) -> list[tuple[int, int, int]]:
    """What was done, in pieces: first, last and seat."""
    done: list[tuple[int, int, int]] = []
    task = _Task(lambda work, first, last, seat: done.append((first, last, seat)))
    share = compiled_library.loaded().draftwire_parallel_for
    share.argtypes = (_Task, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    share.restype = None
    share(task, None, count, least, threads)
    return done


def all_done_once(count: int, least: int, threads: int) -> bool:
    done = shared(count, least, threads)
    times = Counter(item for first, last, _ in done for item in range(first, last))
    return times == Counter(range(count)) and all(0 <= seat < threads for _, _, seat in done)


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
        signal.alarm(30)  # a child that hangs is a failure
        os._exit(0 if all(all_done_once(50, 1, 4) for _ in range(5)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all_done_once(50, 1, 4)
