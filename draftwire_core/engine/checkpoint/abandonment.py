"""Loading that nobody waits for any longer, which then ends at its next step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from draftwire_core.engine.checkpoint.model_load_error import ModelLoadError

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
