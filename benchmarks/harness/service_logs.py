"""Signs of unhandled faults in the logs of services."""

from __future__ import annotations

import json
import re
from pathlib import Path

_WORDS = re.compile(r"traceback|unhandled|never retrieved|never awaited|fatal|core dumped|segmentation", re.IGNORECASE)
_LEVELS = ("error", "critical")


def unhandled(log: Path) -> list[str]:
    """Returns the lines of a JSON log that report an unhandled fault: errors and tracebacks that were logged, output of
    Python itself, and late findings of asyncio."""
    return [line for line in log.read_text(errors="replace").splitlines() if _tells_of_a_fault(line)]


def logged_faults(log: Path) -> list[str]:
    """Returns the lines of a JSON log that were logged as an error or name an exception, judged by their text alone."""
    lines = log.read_text(errors="replace").splitlines()
    signs = ('"level": "error"', '"level": "critical"', "Traceback", '"exception"', "never retrieved", "never awaited")
    return [line for line in lines if any(sign in line for sign in signs)]


def _tells_of_a_fault(line: str) -> bool:
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return _WORDS.search(line) is not None
    if not isinstance(event, dict):
        return False
    if event.get("level") in _LEVELS or "exception" in event:
        return True
    return _WORDS.search(str(event.get("event", ""))) is not None
