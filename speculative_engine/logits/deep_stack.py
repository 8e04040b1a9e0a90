"""Runs a function in a thread with a stack of its own size, for native code that recurses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

ResultT = TypeVar("ResultT")

_SETTING = threading.Lock()
"""The size is the process's, for all threads that begin while it is set."""


def run_deep(function: Callable[[], ResultT], stack_bytes: int) -> ResultT:
    """Return what a function returns, or raise what it raises, from a thread with a stack of this size.

    The stack is address space alone until it is used, and is given back when the thread ends.
    """
    outcome: Future[ResultT] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name=f"{threading.current_thread().name}-deep", daemon=True)
    with _SETTING:
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return outcome.result()
