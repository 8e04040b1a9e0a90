"""Garbage collection around collecting tests, which makes hundreds of thousands of objects and hardly any garbage.

Without it each worker would walk through all modules and tests again and again: while it makes them, and at each full
collection during the run.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


class Garbage:
    """The plugin that collects no garbage until all tests are known, and never looks at what was made until then."""

    def __init__(self) -> None:
        gc.disable()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            gc.freeze()
            gc.enable()

    def pytest_unconfigure(self) -> None:
        """Runs that end before they collect leave the process as it was."""
        gc.enable()
