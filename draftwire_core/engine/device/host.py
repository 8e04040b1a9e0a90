"""The host: free memory, of the machine or of the container that the process runs in, and CPU threads."""

from __future__ import annotations

import os
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Limits from this on are none: version 1 writes a number near 2^63."""


def free_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Bytes that may still be taken: of the machine, and of every control group that the process is in. None if the
    system does not report it. Files that the system keeps in memory, and can drop, count as free."""
    free = _of_machine(proc)
    for limit, used in _of_groups(proc, cgroups):
        free = max(0, limit - used) if free is None else min(free, max(0, limit - used))
    return free


def _of_machine(proc: Path) -> int | None:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError, IndexError):  # other systems have no such file
        return None


def _of_groups(proc: Path, cgroups: Path) -> list[tuple[int, int]]:
    """The limit of each group that has one, and what is used of it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0" and not kinds:
            names, prefix, root = ("memory.max", "memory.current"), "", cgroups
        elif "memory" in kinds.split(","):
            names, prefix = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"
            root = cgroups / "memory"
        else:
            continue
        group = root / path.lstrip("/")
        # A container sees its own group as the root; elsewhere the groups above may have limits, too.
        for place in (group, *group.parents):
            each = _of_group(place, *names, prefix)
            if each is not None:
                found.append(each)
            if place == root:
                break
    return found


def _of_group(place: Path, limit: str, usage: str, prefix: str) -> tuple[int, int] | None:
    """A group's limit and use; None if it has no limit, or is not there. prefix: of the names of its statistics."""
    try:
        most = (place / limit).read_text().strip()
        if most == "max" or int(most) >= _UNLIMITED:
            return None
        used = int((place / usage).read_text())
        for line in (place / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in (f"{prefix}inactive_file", f"{prefix}active_file"):  # what is read twice becomes active
                used -= int(value)
        return int(most), used
    except (OSError, ValueError):
        return None


def set_cpu_threads(count: int) -> None:
    """Sets the number of CPU threads for forward passes of the calling thread; OpenMP keeps it per thread."""
    import torch  # here, so that the memory can be asked without it

    torch.set_num_threads(count)


def share_of_threads(ranks: int) -> int | None:
    """CPU threads per rank when several share this machine's cores; None, torch's default, for a single rank."""
    return None if ranks == 1 else max(1, _cores() // ranks)


def _cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
