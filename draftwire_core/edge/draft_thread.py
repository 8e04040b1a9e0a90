"""The drafting thread, which runs one packed batch per step for all requests of the process."""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
from collections.abc import Callable, Sequence

from draftwire_core.engine.drafters.drafter import Drafter, DrafterFullError, DraftSpec, OutOfSyncError
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.runtime.threads.command_thread import CommandThread

log = logging.getLogger("draftwire.edge")


class DraftThread:
    """Runs a drafter in a thread of its own. Methods may be called from any thread and take effect there, in order.

    An error of the drafter is logged and ends the thread. Callers get no exception: their requests continue without
    drafts.
    """

    def __init__(self, drafter: Drafter, *, prepare: Callable[[], None] = lambda: None) -> None:
        """Starts the thread, which runs ``prepare`` first."""
        self._drafter = drafter
        self._keys = itertools.count(1)
        self._listeners: dict[int, Callable[[Proposal], None]] = {}  # used only by the thread
        self._thread = CommandThread(self._draft, name="draftwire-edge", on_end=self._end)
        self._post(prepare)
        self._thread.start()
        atexit.register(self.stop)  # a thread inside torch must not outlive the interpreter

    @property
    def alive(self) -> bool:
        """Whether the thread is running: neither stopped nor failed."""
        return not self._thread.stopping

    def open(self, spec: DraftSpec, listener: Callable[[Proposal], None]) -> int:
        """Starts drafting for a sequence; returns its key. ``listener`` gets its proposals, called in the thread."""
        key = next(self._keys)
        self._post(lambda: self._open(key, spec, listener))
        return key

    def commit(self, key: int, committed_length: int, tokens: Sequence[int]) -> None:
        """Follows a verdict; does nothing if the sequence is not open."""
        self._post(lambda: self._commit(key, committed_length, tokens))

    def close(self, key: int) -> None:
        """Frees a sequence; does nothing if it is not open."""
        self._post(lambda: self._close(key))

    def stop(self) -> None:
        """Ends the thread after its current step, and waits for it."""
        atexit.unregister(self.stop)
        self._thread.ask_to_stop()
        self._thread.join()

    def open_sequences(self) -> int:
        """Returns the number of open sequences, after all earlier calls have taken effect; 0 once the thread ended."""
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
        # Bounded by the commits of one step: all commands run between two steps.
        self._thread.post(command, bounded=False)

    # The methods below run in the thread.

    def _draft(self) -> float | None:
        if not self._drafter.busy:
            return None
        for key, proposal in self._drafter.grow().proposals.items():
            self._listeners[key](proposal)  # type: ignore[index]
        return 0.0

    def _end(self, error: BaseException | None) -> None:
        self._listeners.clear()
        if error is not None:
            log.error("local drafter failed; requests continue without drafts", exc_info=error)

    def _open(self, key: int, spec: DraftSpec, listener: Callable[[Proposal], None]) -> None:
        try:
            self._drafter.open(key, spec)
        except DrafterFullError as error:
            log.warning("local drafts disabled for a request: %s", error)
        else:
            self._listeners[key] = listener

    def _commit(self, key: int, committed_length: int, tokens: Sequence[int]) -> None:
        if key not in self._listeners:
            return
        try:
            self._drafter.commit(key, committed_length, tokens)
        except OutOfSyncError as error:
            log.warning("local drafts disabled for a request: %s", error)
            self._close(key)

    def _close(self, key: int) -> None:
        self._listeners.pop(key, None)
        self._drafter.close(key)
