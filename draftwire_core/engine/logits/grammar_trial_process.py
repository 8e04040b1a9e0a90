"""The process in which forms are tried before a service compiles them.

It holds the tokenizer and forks for each form. The child ends when its work is done, by a crash, or by a limit of time
or memory. Messages are length-prefixed bytes on Unix sockets. The control socket carries the table of tokens, then for
each form a byte with the answer's socket; the answer's socket carries the form as JSON, then the outcome.
"""

from __future__ import annotations

import ctypes
import gc
import json
import marshal
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from llguidance import LLTokenizer

from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_library import compile_form, first_mask, run_deep, tokenizer_with_end
from draftwire_core.engine.text.token_table import TokenTable

TRIAL_STACK = 64 * 1024 * 1024
"""Bytes of stack for compiling a form in this process; the service uses more, see `grammar_compiler`."""
STEP_STACK = 1024 * 1024
"""Bytes of stack within which the service's other threads must be able to copy a form, compute masks and drop it."""
TRIAL_MEMORY = 256 * 1024 * 1024
"""Bytes of memory that trying a form may take."""
_STATM = Path("/proc/self/statm")


def send(sender: socket.socket, data: bytes) -> None:
    """Sends a message."""
    sender.sendall(len(data).to_bytes(8) + data)


def receive(receiver: socket.socket) -> bytes:
    """Receives a message. Raises EOFError if the peer has closed the socket."""
    data = bytearray()
    size = 8
    header = True
    while len(data) < size:
        part = receiver.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("the other side has closed the connection")
        data += part
        if header and len(data) == size:
            size, header = int.from_bytes(data), False
            data.clear()
    return bytes(data)


def main(descriptor: int) -> None:
    """Tries forms until the service closes the control socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles Ctrl-C and ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for, since they send answers
    control = socket.socket(fileno=descriptor)
    try:
        tokenizer = tokenizer_with_end(TokenTable(*marshal.loads(receive(control))))
        _return_memory()
        send(control, b"ready")
        while True:
            _, [answer], _, _ = socket.recv_fds(control, 1, 1)
            if os.fork() == 0:
                control.close()
                _try(tokenizer, socket.socket(fileno=answer))
            os.close(answer)
    except (EOFError, ValueError):  # nothing was received: the service has ended
        return


def _return_memory() -> None:
    """Returns to the system what reading the tokens has left free; it would be kept for as long as the service runs."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _try(tokenizer: LLTokenizer, answer: socket.socket) -> None:
    """Tries one form and ends the process."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())
    os.dup2(silence, sys.stderr.fileno())  # keeps a crashing library's output out of the service's log
    outcome: dict[str, str | int | list[str] | None] = {"error": None}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        asked = json.loads(receive(answer))
        # Either timer ends the process, even within the library.
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        signal.setitimer(signal.ITIMER_REAL, asked["clock_seconds"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if _STATM.exists():  # only Linux has it; elsewhere memory is not limited
            space = int(_STATM.read_text().split()[0]) * resource.getpagesize()
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (space + TRIAL_STACK + TRIAL_MEMORY, hard))
        grammar = Grammar(FormKind(asked["kind"]), asked["text"])
        grammar.check_depth()  # here, since finding a hostile form's depth may itself take time and memory
        compiled = [run_deep(lambda: compile_form(tokenizer, grammar), TRIAL_STACK)]
        run_deep(lambda: first_mask(compiled.pop()), STEP_STACK)
        outcome["left_out"] = run_deep(grammar.left_out, TRIAL_STACK)
    except GrammarError as error:
        outcome["error"] = str(error)
    outcome["bytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    send(answer, json.dumps(outcome).encode())
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
