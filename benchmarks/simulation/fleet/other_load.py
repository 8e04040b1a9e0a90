"""Processor time that other processes of the machine take during a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Fields of /proc/stat that count idle time: idle, iowait."""


class OtherLoad:
    """Processor time, from its start on, of processes that do not belong to a measurement. Linux only."""

    def __init__(self, pids: Sequence[int]):
        """pids: processes that belong to the measurement, besides this process and its ended children."""
        self._pids = pids
        self._start = _Reading.of(pids)

    def cores(self) -> float:
        """Returns the average number of cores that other processes used since the start."""
        now = _Reading.of(self._pids)
        return max(0.0, (now.busy - self._start.busy) - (now.own - self._start.own)) / (now.at - self._start.at)


class _Reading(NamedTuple):
    at: float
    busy: float
    own: float

    @classmethod
    def of(cls, pids: Sequence[int]) -> _Reading:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(value for index, value in enumerate(fields) if index not in _IDLE) / _TICKS
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return cls(time.perf_counter(), busy, own + sum(map(_seconds, pids)))


def _seconds(pid: int) -> float:
    """Returns the processor time of a process; 0 once it has ended, as it then counts among this process's children."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / _TICKS
