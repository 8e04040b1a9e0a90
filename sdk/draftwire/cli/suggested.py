"""The choice of a drafter for a target, made by the services' package in a process of its own: it reads model files,
which the command line cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from draftwire.cli.child_environment import child_environment
from draftwire.cli.failure import Failure

_MODULE = "draftwire_core.suggesting"


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
    command = [sys.executable, "-m", _MODULE, "--model", model, "--device", device, *(["--fetch"] if fetch else [])]
    process = subprocess.Popen(
        command,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes to this process alone, which stops the other one
    )
    try:
        out, _ = process.communicate()
    finally:
        process.kill()  # does nothing when it has ended
        process.wait()
    try:
        found = json.loads(out)
    except ValueError:
        raise Failure(f"the drafters for {model} could not be looked up (exit status {process.returncode})") from None
    if not isinstance(found, dict) or "error" in found:
        raise Failure(str(found["error"]))
    return found
