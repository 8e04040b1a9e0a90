"""Models on the kernels of GPUs whose sizes of blocks are not tried, which takes seconds in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from draftwire_core.engine.model.cuda import kernel_linear
from draftwire_core.engine.model.cuda.kernels.product import ROW_BLOCKS


@contextmanager
def untried_blocks() -> Iterator[None]:
    """Models that are made within the context use blocks of all sizes, as the trial finds in the interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_linear, "equal_blocks", lambda *_: ROW_BLOCKS)
        yield
