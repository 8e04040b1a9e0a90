"""Why a service cannot start."""

from collections.abc import Iterator
from contextlib import contextmanager


class StartupError(Exception):
    """A cause that the operator can mend, said in one line; `run_service` shows it without a traceback."""


@contextmanager
def startup_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds become StartupErrors that say the same."""
    try:
        yield
    except kinds as error:
        raise StartupError(str(error)) from error
