"""Causes that keep a process from starting, each said in one line."""

from collections.abc import Iterator
from contextlib import contextmanager


class StartupError(Exception):
    """A cause that the operator can mend, said in one line; the log shows it without a traceback."""


@contextmanager
def startup_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds become StartupErrors that say the same."""
    try:
        yield
    except kinds as error:
        raise StartupError(str(error)) from error


@contextmanager
def named_flags(flags: str) -> Iterator[None]:
    """A ValueError becomes a StartupError that begins with these flags."""
    try:
        yield
    except ValueError as error:
        raise StartupError(f"{flags}: {error}") from error
