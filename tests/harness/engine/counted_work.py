"""Counts the Python bytecode instructions of a call: the count does not depend on the machine or its load."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions(call: Callable[[], object]) -> int:
    """Returns the number of bytecode instructions that a call executes, including the functions it calls.

    No garbage is collected meanwhile: callbacks of a collection, such as Hypothesis's, would be counted.
    """
    count = 0

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return follow

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
