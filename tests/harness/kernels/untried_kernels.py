"""Models on the kernels of GPUs whose shapes are not tried, which takes seconds in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from draftwire_core.engine.model.cuda import placing


@contextmanager
def untried_kernels() -> Iterator[None]:
    """Models that are made within the context use all cuts of products, as the trial finds in the interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "try_kernels", lambda *_: [])
        yield
