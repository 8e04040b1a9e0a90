"""Garbage collections that look at a test's own objects alone."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 1
"""The oldest generation of what recent tests have left."""


@contextmanager
def collected() -> Iterator[None]:
    """Collects, at the end of the block, garbage that came within it: that reveals exceptions which nobody has seen.

    What was there before is never looked at again, which would take a multiple of the time.
    """
    gc.collect(_YOUNG)
    gc.freeze()
    yield
    gc.collect()
