"""Says which kernels compute on a device, and what would be faster on the same machine."""

from __future__ import annotations

import logging

from draftwire_core.engine.kernels.library import LIBRARY, available_kernels, is_built, kernels_in_use

log = logging.getLogger(__name__)

_LIBRARY = (
    "reinstall draftwire-services by a wheel with a compiled part, or with a C compiler (cc, gcc or clang) installed, "
    "in a checkout by pip install -e '.[serve]'"
)
_TYPE = "--dtype bfloat16 reads half as many bytes of weights in a step, with --weights q8_0 about a quarter"


def kernels_of(device: str) -> str:
    """Returns what computes on a torch device: the name of the CPU kernels in use, or the type of another device."""
    return kernels_in_use() if device == "cpu" else device.partition(":")[0]


def faster(device: str, weight_type: str) -> str:
    """Returns what would be faster than the kernels in use with weights of this type, for people; "" for nothing.

    Raises LibraryMismatchError.
    """
    if device != "cpu":
        return ""
    kernels = available_kernels()
    if kernels == ("torch",):
        return _LIBRARY
    if kernels_in_use() != kernels[-1]:
        return f"--kernels {kernels[-1]} uses more of this processor's instructions"
    return _TYPE if weight_type == "float32" else ""


def warn_without_library(device: str) -> None:
    """Logs a warning if a model on this device would use the compiled library but it was not built."""
    if device == "cpu" and not is_built():
        log.warning(
            "compiled library not found; decoding is slower", extra={"expected": LIBRARY.name, "remedy": _LIBRARY}
        )
