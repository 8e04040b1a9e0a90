"""The reason why a child process ended, in a sentence: from its exit status and its log."""

from __future__ import annotations

import ast
import re
import signal

from draftwire._types.quoting import shortened

_MOST_CHARACTERS = 400
_LAST_LINES = 60
"""Lines at the end of a log that may say why. An error before them did not end the process."""
_MEMORY = re.compile(r"out of memory|can(no|')t allocate memory|MemoryError", re.IGNORECASE)
_LOGGED = re.compile(r"^\S+ \[(error|critical)\s*\] (?P<said>.+)$")
_REASON = re.compile(r"reason=(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+)")
_FIELDS = re.compile(r"\s+module=\S+")
_RAISED = re.compile(r"^(Fatal Python error|[\w.]*(Error|Exception|Exit|OutOfMemory\w*)\b).*")
_PROGRAM = re.compile(r"^(python -m [\w.]+|draftwire-\w+): ")


def end_reason(name: str, code: int, log: str) -> str:
    """Returns why a process ended.

    Args:
        name: the process, for people.
        code: its exit status; negative for a signal's number.
        log: what it has written, at least the end of it.
    """
    if code == -signal.SIGKILL:
        return f"{name} was killed (signal 9); out of memory is the usual cause"
    if code < 0:
        return f"{name} ended by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    reason = reason_in(log) if code else ""  # a process that was asked to end has had no error
    if not reason:
        return f"{name} ended with code {code}"
    if _MEMORY.search(reason) and not reason.lower().startswith("out of memory"):
        reason = f"out of memory: {reason}"
    return f"{name} ended with code {code}: {shortened(reason, _MOST_CHARACTERS)}"


def reason_in(log: str) -> str:
    """Returns what a log says about the end of its process, in one line: the error among its last lines, or else
    its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()][-_LAST_LINES:]
    for line in reversed(lines):
        if found := _LOGGED.match(line):
            said = found["said"]
            if reason := _REASON.search(said):
                return _unquoted(reason["text"])
            if "service failed" not in said and "background task failed" not in said:
                return _FIELDS.sub("", said)
        elif _RAISED.match(line):
            return line
    return _PROGRAM.sub("", lines[-1]) if lines else ""


def _unquoted(text: str) -> str:
    """Returns the text that a log shows quoted."""
    try:
        read = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return read if isinstance(read, str) else text
