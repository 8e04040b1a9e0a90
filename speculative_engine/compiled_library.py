"""The compiled part of the engine, for CPUs, if it is there.

It is built when the package is installed, where there is a C compiler (hatch_build.py). Without it, and for what it
does not compute, torch does the same, slower.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch

log = logging.getLogger(__name__)

LIBRARY = Path(__file__).with_name("libspeculative_engine.so")
LANES = 16
"""Widths that it computes with are multiples of this."""
HALF = {torch.bfloat16: 1, torch.float32: 0}
"""The types it computes with, and what it calls them."""

_POINTER, _COUNT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_ARGUMENTS = {
    "draftwire_attend": (_POINTER, _FLAG),
    "draftwire_best_tokens": (_POINTER,),
    "draftwire_layer": (_POINTER, _POINTER, _POINTER, _POINTER),
    "draftwire_rotate": (_POINTER, _FLAG),
    "draftwire_product": (_POINTER, _FLAG, _FLAG),
    "draftwire_product_kind": (),
    "draftwire_int8_product": (_POINTER, _FLAG, _FLAG),
    "draftwire_rms_norm": (_POINTER, _POINTER, _POINTER, _COUNT, _COUNT, ctypes.c_float, _FLAG, _FLAG),
    "draftwire_gate": (_POINTER, _POINTER, _COUNT, _COUNT, _FLAG, _FLAG),
}


def loaded() -> ctypes.CDLL:
    """The compiled library, for those who have made sure that it is there."""
    compiled = library()
    assert compiled is not None, "whoever calls this has asked for the library before"
    return compiled


@cache
def library() -> ctypes.CDLL | None:
    """The compiled library, None where it was not built."""
    if not LIBRARY.exists():
        return None
    compiled = ctypes.CDLL(str(LIBRARY))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(compiled, name)
        function.argtypes = arguments
    return compiled


@cache
def product_kind() -> int:
    """What the processor has for products of bfloat16: 2 AMX, 1 AVX-512, 0 neither, or no compiled library."""
    compiled = library()
    return 0 if compiled is None else int(compiled.draftwire_product_kind())


def warn_where_missing(device: str) -> bool:
    """Log a warning where a model on this device would use the library and it is not there; returns whether it is."""
    there = library() is not None
    if device == "cpu" and not there:
        log.warning(
            "no compiled library; decoding is slower",
            extra={
                "expected": LIBRARY.name,
                "remedy": "install draftwire again where there is a C compiler (cc, gcc or clang), in a checkout by "
                "pip install -e '.[serve]'",
            },
        )
    return there
