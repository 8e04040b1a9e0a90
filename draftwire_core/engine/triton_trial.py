"""The first run of Triton kernels on a machine, which may lack what they need, such as a C compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


class KernelsUnusableError(Exception):
    """Raised where kernels cannot be used; the message says why."""


@contextmanager
def kernels_tried() -> Iterator[None]:
    """Raises KernelsUnusableError for the errors of kernels that do not compile or do not run within the context."""
    from triton import TritonError

    try:
        yield
    except (TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise KernelsUnusableError(f"the kernels do not run: {reason or type(error).__name__}") from error
