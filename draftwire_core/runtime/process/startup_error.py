"""Errors that keep a process from starting, described in one line each."""

from collections.abc import Iterator
from contextlib import contextmanager

from draftwire_core.lack_of_memory import lacks_memory


class StartupError(Exception):
    """An error that the operator can fix, described in one line; the log shows it without a traceback."""


_MOST_CHARACTERS = 200


def lack_of_memory(error: BaseException) -> str:
    """Returns in a line that memory did not suffice, if an error says so, as libraries say it; otherwise empty."""
    if not lacks_memory(error):
        return ""
    text = str(error).strip()
    said = text.splitlines()[0][:_MOST_CHARACTERS] if text else ""
    needs = "less is needed with fewer --kv-slots, with --weights q8_0, or by a smaller model"
    return f"out of memory; {needs}{said and f' ({said})'}"


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
