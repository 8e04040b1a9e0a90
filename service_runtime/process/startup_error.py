"""Errors that keep a process from starting, described in one line each."""

from collections.abc import Iterator
from contextlib import contextmanager


class StartupError(Exception):
    """An error that the operator can fix, described in one line; the log shows it without a traceback."""


@contextmanager
def startup_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds into StartupErrors with the same text."""
    try:
        yield
    except kinds as error:
        raise StartupError(str(error)) from error


@contextmanager
def named_flags(flags: str) -> Iterator[None]:
    """Turns a ValueError into a StartupError that begins with these flags."""
    try:
        yield
    except ValueError as error:
        raise StartupError(f"{flags}: {error}") from error
