"""Devices that a target may run on, with their roofs: GPUs of the table `devices.toml`, and this machine's CPU."""

from __future__ import annotations

import os
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from draftwire_core.engine.device.host import free_memory

_TABLE = Path(__file__).with_name("devices.toml")
_COPIED_SHARE = 4200 / 4800
"""Share of the nominal bandwidth that copying reaches on the one GPU that was measured, an H200."""
_TRIAL_BYTES = 1 << 28
"""Bytes read in a trial: more than caches hold."""
_TRIALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoofs:
    """A device and its roofs."""

    name: str
    memory: int
    """Bytes: of a GPU in all, of a machine those that are free."""
    bandwidth: float
    """Bytes per second read from memory."""
    bandwidth_from: str
    """The bandwidth's origin, for people."""
    flops: float = 0.0
    """Operations per second of dense products; 0 for a CPU, whose rows cost a share of a pass."""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.flops > 0


@cache
def gpus() -> tuple[DeviceRoofs, ...]:
    """Returns the GPUs of the table."""
    with _TABLE.open("rb") as file:
        return tuple(_gpu(**each) for each in tomllib.load(file)["device"])


def gpu(name: str) -> DeviceRoofs:
    """Returns the GPU of a name. Raises ValueError, with the names that there are."""
    found = next((each for each in gpus() if each.name.lower() == name.lower()), None)
    if found is None:
        names = ", ".join(each.name for each in gpus())
        raise ValueError(f"--gpu: expected one of {names}, got {name!r}; for others name one that is like it, and give "
                         "--memory and --bandwidth")  # fmt: skip
    return found


def cpu(bandwidth: float | None = None, memory: float | None = None) -> DeviceRoofs:
    """Returns this machine's CPU, or one of another machine.

    bandwidth: bytes per second; by default it is measured here, which takes a second. memory: bytes; by default those
    that are free here. Raises ValueError if the system does not report them.
    """
    free = free_memory() if memory is None else int(memory)
    if free is None:
        raise ValueError("--memory: this system does not report its free memory; give it in GiB")
    if bandwidth is not None:
        return DeviceRoofs(name="cpu", memory=free, bandwidth=bandwidth, bandwidth_from="given")
    return DeviceRoofs(name="cpu", memory=free, bandwidth=read_bandwidth(), bandwidth_from="measured here by reading")


def read_bandwidth() -> float:
    """Measures the bytes per second that all cores of this process read from memory together; the best trial counts."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = np.array_split(np.ones(_TRIAL_BYTES // 8, np.int64), cores)
    with ThreadPoolExecutor(cores) as pool:

        def seconds() -> float:
            begun = time.perf_counter()
            list(pool.map(np.max, parts))  # numpy lets other threads run meanwhile
            return time.perf_counter() - begun

        return _TRIAL_BYTES / min(seconds() for _ in range(_TRIALS))


def _gpu(name: str, memory: float, nominal: float, teraflops: float, measured: float | None = None) -> DeviceRoofs:
    return DeviceRoofs(
        name=name,
        memory=int(memory * 2**30),
        bandwidth=1e9 * (measured or nominal * _COPIED_SHARE),
        bandwidth_from="measured by copying" if measured else f"{_COPIED_SHARE:.2f} of the nominal {nominal:g} GB/s",
        flops=1e12 * teraflops,
    )
