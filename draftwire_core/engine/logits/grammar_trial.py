"""Tries forms in a separate process, so that a crash, an endless loop or exhausted memory ends only that process."""

from __future__ import annotations

import json
import logging
import marshal
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from draftwire_core.engine.logits import grammar_trial_process
from draftwire_core.engine.logits.grammar import Grammar, GrammarError
from draftwire_core.engine.logits.grammar_trial_process import receive, send
from draftwire_core.engine.text.token_table import TokenTable

log = logging.getLogger(__name__)

MOST_SECONDS = 4.0
"""Limit of processor time for trying one form."""
_CLOCK_SECONDS = 8.0
"""Limit of wall-clock time for trying one form, for a busy processor."""
_START_SECONDS = 60.0
"""Limit for the process to start and to read the tokenizer."""
_GRACE_SECONDS = 5.0
"""Wait for an answer beyond the limit that the process itself enforces."""


class Tried(NamedTuple):
    """The outcome of a form that has passed its trial."""

    memory: int
    """Bytes of memory that it took."""
    left_out: tuple[str, ...]
    """Places of its parts that are not enforced, see `Grammar.left_out`."""


class GrammarTrial:
    """The trial process, started for the first form, and again if it has ended.

    Several threads may call its methods; their forms are tried in parallel.
    """

    def __init__(self, tokens: Callable[[], TokenTable]) -> None:
        """tokens: returns the target's tokens."""
        self._tokens = tokens
        self._control: socket.socket | None = None
        self._starting = threading.Lock()
        self._end: weakref.finalize[[socket.socket, subprocess.Popen[bytes]], GrammarTrial] | None = None

    def start(self) -> None:
        """Starts the process, which is otherwise started for the first form. Raises RuntimeError."""
        with self._starting:
            if self._control is None:
                self._control = self._start()

    def check(self, grammar: Grammar) -> Tried:
        """Compiles a form in the process.

        Raises:
            GrammarError: the form is invalid, or takes too much time or memory.
            RuntimeError: the process does not start.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._hand_over(theirs)
            started = time.monotonic()
            ours.settimeout(_CLOCK_SECONDS + _GRACE_SECONDS)
            try:
                limits = {"seconds": MOST_SECONDS, "clock_seconds": _CLOCK_SECONDS}
                asked = {"kind": grammar.kind.value, "text": grammar.text} | limits
                send(ours, json.dumps(asked).encode())
                outcome = json.loads(receive(ours))
            except (EOFError, OSError) as error:
                seconds = time.monotonic() - started
                log.warning(
                    "grammar compilation aborted",
                    extra={
                        "kind": grammar.kind.value,
                        "bytes": len(grammar.text.encode()),
                        "seconds": round(seconds, 3),
                    },
                )
                if seconds >= MOST_SECONDS:
                    raise GrammarError(f"takes more than {MOST_SECONDS:g} seconds to compile") from error
                most = grammar_trial_process.TRIAL_MEMORY >> 20
                raise GrammarError(
                    f"cannot be compiled: it takes more than {most} MiB of memory, or crashes the compiler"
                ) from error
        if outcome["error"] is not None:
            raise GrammarError(outcome["error"])
        return Tried(int(outcome["bytes"]), tuple(outcome["left_out"]))

    def _hand_over(self, answer: socket.socket) -> None:
        """Passes the socket for an answer to the process."""
        with self._starting:
            if self._control is not None:
                try:
                    socket.send_fds(self._control, [b"?"], [answer.fileno()])
                    return
                except OSError:  # killed from outside
                    log.warning("grammar process restarted")
                    self._stop()
            self._control = self._start()
            socket.send_fds(self._control, [b"?"], [answer.fileno()])

    def _start(self) -> socket.socket:
        table = self._tokens()
        ours, theirs = socket.socketpair()
        environment = {
            "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
            "MALLOC_ARENA_MAX": "1",  # else address space reserved by threads counts as memory
        }
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", grammar_trial_process.__name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | environment,
            )
        self._end = weakref.finalize(self, _end, ours, process)
        ours.settimeout(_START_SECONDS)
        try:
            send(ours, marshal.dumps((table.spellings, table.specials)))
            receive(ours)
        except (EOFError, OSError) as error:
            self._stop()
            raise RuntimeError("the process that tries output formats did not start") from error
        return ours

    def _stop(self) -> None:
        self._control = None
        if self._end is not None:
            self._end()


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Ends the process; its children end by themselves."""
    control.close()
    process.kill()
    process.wait()
