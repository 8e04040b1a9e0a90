"""Resources of a process, read from /proc, and whether they grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """Resources of a process at one moment."""

    rss_bytes: int
    """Resident memory in bytes, including pages shared with other processes."""
    open_files: int
    """Number of file descriptors: files, sockets, event polls."""
    threads: int

    @classmethod
    def of(cls, pid: int) -> Usage | None:
        """Returns the usage of a process, or None if it no longer exists."""
        try:
            fields = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
            )
            files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            return None
        if "VmRSS" not in fields:  # a zombie
            return None
        return cls(int(fields["VmRSS"].split()[0]) * 1024, files, int(fields["Threads"]))


class Trend(NamedTuple):
    """A straight line fitted to measurements by least squares."""

    slope: float
    """Change per second."""
    growth: float
    """Change from the first measurement to the last, along the line."""

    @classmethod
    def of(cls, times: Sequence[float], values: Sequence[float]) -> Trend:
        """Fits a line. times: seconds, in order. One measurement, or several at one time, have no growth."""
        mean_time, mean = sum(times) / len(times), sum(values) / len(values)
        spread = sum((time - mean_time) ** 2 for time in times)
        if not spread:
            return cls(0.0, 0.0)
        pairs = zip(times, values, strict=True)
        slope = sum((time - mean_time) * (value - mean) for time, value in pairs) / spread
        return cls(slope, slope * (times[-1] - times[0]))


def grew(values: Sequence[float]) -> bool:
    """Whether a fluctuating count has grown: its minimum in the last quarter exceeds its maximum in the first. A leak
    does that sooner or later; normal fluctuation does not."""
    quarter = max(1, len(values) // 4)
    return len(values) > 1 and min(values[-quarter:]) > max(values[:quarter])
