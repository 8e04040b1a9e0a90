"""Processor time of this process and of everything that it has started."""

from __future__ import annotations

import os
import resource
from collections.abc import Container
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def processor_time(*, without: Container[int] = ()) -> float:
    """Seconds that this process and its descendants have used, ended ones included.

    without: descendants that do not count.
    """
    ours, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return ours.ru_utime + ours.ru_stime + ended.ru_utime + ended.ru_stime + _descendants(os.getpid(), without)


def children(process: int | str = "self") -> list[int]:
    """The processes that a process has started and not waited for. There are none where the system does not tell."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:  # it has ended meanwhile
        pass
    return found


def _descendants(process: int, without: Container[int]) -> float:
    total = 0.0
    for child in children(process):
        if child in without:
            continue
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / _TICK + _descendants(child, without)
    return total
