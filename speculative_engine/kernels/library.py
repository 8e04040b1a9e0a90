"""The compiled part of the engine, for CPUs, if it is there, and which of its kernels run.

It is built when the package is installed, where there is a C compiler (hatch_build.py). Without it, and for what it
does not compute, torch does the same, slower, and with other last bits.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
from functools import cache
from pathlib import Path

import torch

from speculative_engine.kernels.kernel_names import Kernels

log = logging.getLogger(__name__)

LIBRARY = Path(__file__).with_name("libspeculative_engine.so")
LANES = 16
"""Widths that it computes with are multiples of this."""
BF16 = {torch.bfloat16: 1, torch.float32: 0}
"""The types it computes with, and what it calls them."""

_POINTER, _COUNT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_ARGUMENTS = {
    "draftwire_attention": (_POINTER, _FLAG),
    "draftwire_sample": (_POINTER,),
    "draftwire_decoder_layer": (_POINTER, _POINTER, _POINTER, _POINTER),
    "draftwire_rope": (_POINTER, _FLAG),
    "draftwire_gemm": (_POINTER, _FLAG, _FLAG),
    "draftwire_gemm_kind": (),
    "draftwire_gemm_int8": (_POINTER, _FLAG, _FLAG),
    "draftwire_rms_norm": (_POINTER, _POINTER, _POINTER, _COUNT, _COUNT, ctypes.c_float, _FLAG, _FLAG),
    "draftwire_silu_and_mul": (_POINTER, _POINTER, _COUNT, _COUNT, _FLAG, _FLAG),
    "draftwire_vector_kind": (),
    "draftwire_use_vectors": (_FLAG,),
}
_VECTORS: tuple[Kernels, ...] = ("baseline", "avx2", "avx512")
"""By the number that the library calls them."""
_PRODUCTS: dict[Kernels, int] = {"avx512bf16": 1, "amx": 2}
"""The numbers by which the library knows kinds of products."""

_chosen: list[Kernels] = []
"""The kernels that this process uses, once they were chosen."""


class KernelsError(Exception):
    """Kernels that cannot run here; the message names those that can."""


def available_kernels() -> tuple[Kernels, ...]:
    """The kernels that can run here, the least first."""
    compiled = _compiled()
    if compiled is None:
        return ("torch",)
    vectors = _VECTORS[: int(compiled.draftwire_vector_kind()) + 1]
    products = [name for name, kind in _PRODUCTS.items() if kind <= int(compiled.draftwire_gemm_kind())]
    return ("torch", *vectors, *products)


def use_kernels(kernels: Kernels) -> None:
    """Choose the kernels of this process. To be called before a model is loaded. Raises KernelsError."""
    there = available_kernels()
    if kernels != "auto" and kernels not in there:
        missing = "" if _compiled() is not None else ", as there is no compiled library"
        raise KernelsError(f"{kernels} cannot run here{missing}; there is {', '.join(('auto', *there))}")
    chosen = there[-1] if kernels == "auto" else kernels
    compiled = _compiled()
    if compiled is not None and chosen != "torch":
        compiled.draftwire_use_vectors(_VECTORS.index("avx512" if chosen in _PRODUCTS else chosen))
    _chosen[:] = [chosen]


def kernels_in_use() -> Kernels:
    """The kernels that run, never "auto"."""
    if not _chosen:
        use_kernels("auto")
    return _chosen[0]


def loaded() -> ctypes.CDLL:
    """The compiled library, for those who have made sure that it is there."""
    compiled = _compiled()
    assert compiled is not None, "whoever calls this has asked for the library before"
    return compiled


def library() -> ctypes.CDLL | None:
    """The compiled library, None where it was not built, or is left alone."""
    return None if kernels_in_use() == "torch" else _compiled()


def gemm_kind() -> int:
    """The kernels of bfloat16 products: 2 AMX, 1 AVX-512, 0 neither, so torch multiplies."""
    return _PRODUCTS.get(kernels_in_use(), 0)


@cache
def library_digest() -> str:
    """SHA-256 (hex) of the library's file: builds of the same sources by the same compiler have the same one."""
    return hashlib.sha256(LIBRARY.read_bytes()).hexdigest()


def fuses_products() -> bool | None:
    """Whether the compiled attention fuses products with sums; None where its build alone decides."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    return kernels_in_use() not in ("baseline", "avx2")


@cache
def _compiled() -> ctypes.CDLL | None:
    if not LIBRARY.exists():
        return None
    compiled = ctypes.CDLL(str(LIBRARY))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(compiled, name)
        function.argtypes = arguments
    return compiled


def warn_where_missing(device: str) -> None:
    """Log a warning where a model on this device would use the library and it was not built."""
    if device == "cpu" and _compiled() is None:
        log.warning(
            "no compiled library; decoding is slower",
            extra={
                "expected": LIBRARY.name,
                "remedy": "install draftwire again where there is a C compiler (cc, gcc or clang), in a checkout by "
                "pip install -e '.[serve]'",
            },
        )
