"""The choice of a drafter for a target, made by the services' package in a process of its own: it reads model files,
which the command line cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from draftwire.cli.failure import Failure
from draftwire_tools.service import child_environment

_MODULE = "draftwire_core.suggesting"
_STOP_SECONDS = 5.0


def suggested(model: str, device: str, *, fetch: bool) -> Mapping[str, Any]:
    """Returns what `python -m draftwire_core.suggesting` prints: the candidates, and, if they are to be fetched, which
    drafter is ready. Progress of downloads is shown on stderr.

    Args:
        model: the target, a directory, a GGUF file or a hub id.
        device: of the target.
        fetch: whether the target and the drafter are downloaded if they are not here.

    Raises:
        Failure: there is no such target, or it cannot be read.
    """
    process = subprocess.Popen(
        [sys.executable, *command(model, device, fetch=fetch)],
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes to this process alone, which stops the other one
    )
    try:
        out, _ = process.communicate()
    finally:
        process.terminate()  # does nothing when it has ended; a download in another process ends with it
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return read(out, model, process.returncode)


def command(model: str, device: str, *, fetch: bool) -> tuple[str, ...]:
    """Returns the arguments of Python that look the drafters for a target up; see `suggested`."""
    return ("-m", _MODULE, "--model", model, "--device", device, *(("--fetch",) if fetch else ()))


def read(out: bytes, model: str, status: int) -> Mapping[str, Any]:
    """Reads what such a process has printed.

    Args:
        out: its output.
        model: the target.
        status: its exit status.

    Raises:
        Failure: there is no such target, or it cannot be read.
    """
    try:
        found = json.loads(out)
    except ValueError:
        raise Failure(f"the drafters for {model} could not be looked up (exit status {status})") from None
    if not isinstance(found, dict) or "error" in found:
        raise Failure(str(found["error"]))
    return found
