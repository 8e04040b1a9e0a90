"""Processor time of this process and of everything that it has started."""

from __future__ import annotations

import os
import resource
from collections.abc import Container

_TICK = os.sysconf("SC_CLK_TCK")


def processor_time(*, without: Container[int] = ()) -> float:
    """Seconds that this process and its descendants have used, ended ones included.

    without: descendants that do not count.
    """
    ours, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return ours.ru_utime + ours.ru_stime + ended.ru_utime + ended.ru_stime + _descendants(None, without)


def children(process: int | None = None) -> list[int]:
    """The processes that a process has started and not waited for, by default this one. There are none where the system
    does not tell."""
    if process is None:
        process = os.getpid()
        try:  # most tests have none, and there may be many threads
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
    try:
        threads = os.listdir(f"/proc/{process}/task")  # noqa: PTH208 called several times for each test
    except OSError:  # it has ended meanwhile
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{process}/task/{thread}/children").split()]


def _read(file: str) -> bytes:
    """The content of a file of the kernel's; nothing if its process or thread has ended."""
    try:
        opened = os.open(file, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(opened, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(opened)


def _descendants(process: int | None, without: Container[int]) -> float:
    total = 0.0
    for child in children(process):
        if child in without:
            continue
        fields = _read(f"/proc/{child}/stat").rpartition(b")")[2].split()
        if not fields:
            continue
        total += sum(map(int, fields[11:15])) / _TICK + _descendants(child, without)
    return total
