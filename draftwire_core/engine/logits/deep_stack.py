"""Runs a function in a thread with a stack of a given size, for native code that recurses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

ResultT = TypeVar("ResultT")

_SETTING = threading.Lock()
"""Held while the stack size is set, which applies to every thread that the process starts meanwhile."""


def run_deep(function: Callable[[], ResultT], stack_bytes: int) -> ResultT:
    """Runs a function in a thread with a stack of this size; returns or raises what the function does.

    The stack is only address space until it is used, and is freed when the thread ends.
    """
    outcome: Future[ResultT] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
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
