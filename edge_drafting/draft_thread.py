"""The thread that drafts: one packed batch a step for all requests of this process."""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from speculative_engine.drafters.drafter import Drafter, DrafterFullError, DraftSpec, OutOfSyncError
from speculative_engine.tree.proposal import Proposal

log = logging.getLogger("draftwire.edge")


class DraftThread:
    """Owns a drafter. Any thread may call; what is called happens in the drafter's own thread, in order.

    A fault of the drafter ends the thread and is logged. Nobody is told by an exception: a request whose drafter is
    lost goes on without.
    """

    def __init__(self, drafter: Drafter, *, prepare: Callable[[], None] = lambda: None) -> None:
        """Starts the thread. ``prepare`` runs in it first."""
        self._drafter = drafter
        self._prepare = prepare
        self._changed = threading.Condition()
        # Bounded by what requests commit during one step: all that waits is done between two steps.
        self._commands: deque[Callable[[], None]] = deque()
        self._ended = False
        self._keys = itertools.count(1)
        self._listeners: dict[int, Callable[[Proposal], None]] = {}  # the thread's own
        self._thread = threading.Thread(target=self._run, name="draftwire-edge", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # a thread inside torch must not outlive the interpreter

    @property
    def alive(self) -> bool:
        """False once the thread was stopped or has failed."""
        return not self._ended

    def open(self, spec: DraftSpec, listener: Callable[[Proposal], None]) -> int:
        """Drafts for a sequence from now on; returns its key. ``listener`` gets its proposals, in the thread."""
        key = next(self._keys)
        self._post(lambda: self._open(key, spec, listener))
        return key

    def commit(self, key: int, committed_length: int, tokens: Sequence[int]) -> None:
        """Follows a verdict. Of no effect when the sequence is not open."""
        self._post(lambda: self._commit(key, committed_length, tokens))

    def close(self, key: int) -> None:
        """Frees a sequence. Of no effect when it is not open."""
        self._post(lambda: self._close(key))

    def stop(self) -> None:
        """Ends the thread after the step it is at, and wait for it."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        atexit.unregister(self.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def open_sequences(self) -> int:
        """Returns the number of open sequences, once all that was called before has been done; 0 after the end."""
        counted: list[int] = []
        done = threading.Event()

        def count() -> None:
            counted.append(len(self._listeners))
            done.set()

        self._post(count)
        while self.alive and not done.wait(0.1):
            pass
        return counted[0] if counted else 0

    def _post(self, command: Callable[[], None]) -> None:
        with self._changed:
            if not self._ended:
                self._commands.append(command)
                self._changed.notify()

    # From here on: in the thread.

    def _run(self) -> None:
        try:
            self._prepare()
            busy = False
            while self._take(wait=not busy):
                busy = self._drafter.busy
                if busy:
                    for key, proposal in self._drafter.grow().proposals.items():
                        self._listeners[key](proposal)  # type: ignore[index]
        except Exception:
            log.exception("the local drafter has failed; requests go on without it")
        finally:
            with self._changed:
                self._ended = True
                self._commands.clear()
            self._listeners.clear()

    def _take(self, *, wait: bool) -> bool:
        """Does what was called; with ``wait``, waits until there is something. False when the thread is to end."""
        with self._changed:
            while wait and not self._commands and not self._ended:
                self._changed.wait()
            if self._ended:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        return True

    def _open(self, key: int, spec: DraftSpec, listener: Callable[[Proposal], None]) -> None:
        try:
            self._drafter.open(key, spec)
        except DrafterFullError as error:
            log.warning("a request goes on without local drafts: %s", error)
        else:
            self._listeners[key] = listener

    def _commit(self, key: int, committed_length: int, tokens: Sequence[int]) -> None:
        if key not in self._listeners:
            return
        try:
            self._drafter.commit(key, committed_length, tokens)
        except OutOfSyncError as error:
            log.warning("a request goes on without local drafts: %s", error)
            self._close(key)

    def _close(self, key: int) -> None:
        self._listeners.pop(key, None)
        self._drafter.close(key)
