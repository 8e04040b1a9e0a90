"""The errors of a library that reads a checkpoint, as sentences that name the checkpoint; and abandoned loading."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from draftwire_core.engine.errors import ModelLoadError, ModelMemoryError
from draftwire_core.lack_of_memory import lacks_memory

log = logging.getLogger(__name__)

_LONGEST = 400
"""Characters kept of a library's error message."""
_PLAIN = (ValueError, OSError, RuntimeError)
"""Errors whose message says it all; others get the name of their type before it."""
_INVALID = re.compile(r"(?:Class v|V)alidation error for (?:field|validator) '\w+': \w+: (.*)")
"""A message of transformers about a configuration's field, which begins before the sentence that says what is wrong."""
_CUSTOM = re.compile(r"contains custom code .*trust_remote_code=True.*")
"""The part of a message of transformers that names a Python argument."""
_PANIC = "PanicException"
"""Name of what libraries in Rust raise where a file breaks their assumptions. It is no Exception."""
_TRACE = "Exception raised from"
"""The beginning of torch's list of its own functions."""


def reason_of(error: Exception) -> str:
    """The message of an error as one line. Lack of memory is called that, whichever library has reported it."""
    line = " ".join(str(error).partition(_TRACE)[0].split())
    invalid = _INVALID.match(line)
    if lacks_memory(error):
        line = f"there is not enough memory for it: {line}" if line else "there is not enough memory for it"
    elif invalid is not None:
        line = f"config.json: {invalid[1]}"
    elif _CUSTOM.search(line) is not None:
        line = "has code of its own, which runs only if --trust-remote-code permits it (DRAFTWIRE_TRUST_REMOTE_CODE)"
    elif not line:
        line = type(error).__name__
    elif not isinstance(error, _PLAIN) or isinstance(error, RecursionError):
        line = f"{type(error).__name__}: {line}"
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


@contextmanager
def load_errors(what: str, *but: type[Exception]) -> Iterator[None]:
    """Turns any error within the context into a ModelLoadError that begins with `what`; lack of memory into a
    ModelMemoryError.

    Code of libraries and of checkpoints runs here on files of unknown origin, and may raise anything. An error that
    may as well be a fault of this program is logged with its traceback. ModelLoadErrors and errors of the kinds `but`
    pass as they are.
    """
    passed: tuple[type[Exception], ...] = (ModelLoadError, *but)
    try:
        yield
    except passed:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise ModelMemoryError(f"{what}: {reason_of(error)}") from error
        if not isinstance(error, _PLAIN) and _INVALID.match(str(error)) is None:
            log.warning("%s not loaded: unexpected error", what, exc_info=error)
        raise ModelLoadError(f"{what}: {reason_of(error)}") from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise ModelLoadError(f"{what}: {' '.join(str(error).split())[:_LONGEST]}") from error


_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class LoadAbandonedError(ModelLoadError):
    """Raised in a thread whose result nobody waits for."""


@contextmanager
def abandoned_by(event: threading.Event) -> Iterator[None]:
    """Makes `stop_if_abandoned` raise in this thread within the context once the event is set."""
    token = _abandoned.set(event)
    try:
        yield
    finally:
        _abandoned.reset(token)


def stop_if_abandoned() -> None:
    """Raises LoadAbandonedError if nobody waits for what this thread loads. Costs less than a microsecond."""
    event = _abandoned.get()
    if event is not None and event.is_set():
        raise LoadAbandonedError("loading was given up, since nobody waits for it any longer")
