"""The device that models run on, found out without importing torch into the command."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from draftwire.cli.failure import Failure
from draftwire_tools.service import child_environment

AUTO = "auto"
_MODULE = "draftwire_core.engine.device.choices"
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this machine."""

    target: str
    """cpu, cuda or cuda:N, for the target."""
    drafts: str
    """The ``--device`` of drafter services. Some kinds of drafters run on CPUs only, and take them by auto."""
    about: str
    """The device for people."""


def device_here(asked: str) -> Device:
    """Returns the device for ``--device``.

    Raises:
        ValueError: there is no such device.
        Failure: it could not be found out.
    """
    command = [sys.executable, "-m", _MODULE, asked]
    try:
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"--device: the GPU's driver has not answered for {_SECONDS:.0f} s; try --device cpu") from None
    said = done.stderr.strip().splitlines()
    if done.returncode and said and said[-1].startswith("--device: "):
        raise ValueError(said[-1])
    if done.returncode:
        raise Failure(f"--device: {asked} could not be tried: {said[-1] if said else done.returncode}")
    target, about = done.stdout.splitlines()[-2:]
    return Device(target, AUTO if asked in (AUTO, "cuda") else asked, about)
