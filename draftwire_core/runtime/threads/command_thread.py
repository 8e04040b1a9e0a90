"""A thread that does units of work, and commands from other threads between them."""

import threading
from collections import deque
from collections.abc import Callable


class TooManyCommands(Exception):
    """The thread is too far behind: its command queue is full."""


class CommandThread:
    """Runs `work` repeatedly, and between two runs the posted commands, in order.

    `work` does one unit, for example a forward pass, and returns how long to wait for a command before the next: 0
    continues immediately, None waits until a command comes. An exception in `work` or in a posted command ends the
    thread. `on_end` is called last in the thread, with that exception or None.
    """

    def __init__(
        self,
        work: Callable[[], float | None],
        *,
        name: str,
        on_end: Callable[[BaseException | None], None],
        max_commands: int = 65536,
    ) -> None:
        self._work = work
        self._on_end = on_end
        self._max_commands = max_commands
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether the thread has ended or was asked to end: it takes no more commands."""
        return self._stopping

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def post(self, command: Callable[[], None], *, bounded: bool = True) -> None:
        """Queues `command` to run in the thread. Any thread may call. Raises TooManyCommands; does nothing after stop.

        bounded: False for a command that must not be lost and that no peer can multiply, such as freeing a sequence.
        """
        with self._changed:
            if self._stopping:
                return
            if bounded and len(self._commands) >= self._max_commands:
                raise TooManyCommands(f"{self._max_commands} commands are queued already")
            self._commands.append(command)
            self._changed.notify()

    def ask_to_stop(self) -> None:
        """Lets the thread end after its current unit. Queued commands are dropped."""
        with self._changed:
            self._stopping = True
            self._commands.clear()
            self._changed.notify()

    def join(self) -> None:
        """Waits for the thread's end; returns at once in the thread itself."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            wait: float | None = 0.0
            while self._take(wait):
                wait = self._work()
        except BaseException as error:  # noqa: BLE001 - the thread's end, which is reported
            failure = error
        finally:
            self.ask_to_stop()
            self._on_end(failure)

    def _take(self, wait: float | None) -> bool:
        """Runs the posted commands, first waiting up to `wait` seconds for one; returns False if the thread is to
        end."""
        if wait == 0 and not self._commands and not self._stopping:
            return True  # a command that is posted meanwhile is taken after the next unit
        with self._changed:
            if not self._commands and not self._stopping and wait != 0:
                self._changed.wait(wait)
            if self._stopping:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        return True
