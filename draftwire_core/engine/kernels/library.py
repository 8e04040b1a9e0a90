"""The compiled library of kernels for CPUs: loads it, checks that it matches its sources, and selects the kernels.

The library is built when the package is installed, if there is a C compiler (`build.py`). Without it, and for
operations that it lacks, torch computes the same, slower and with different last bits. A library built from other
sources is refused: it could misread the structs of `structs.py` or compute different bits.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
from functools import cache
from typing import Any

import torch

from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.kernels import build
from draftwire_core.engine.kernels.structs import COUNT, FLAG, FLOAT, POINTER, STRUCTS, TASK, Abi

LIBRARY = build.LIBRARY
LANES = 16
"""Widths that the library supports are multiples of this."""
BF16 = {torch.bfloat16: 1, torch.float32: 0}
"""The dtypes that the library supports, each with the value of the library's flag `bf16`."""

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "draftwire_abi": (ctypes.POINTER(Abi), ()),
    "draftwire_vector_kind": (FLAG, ()),
    "draftwire_use_vectors": (None, (FLAG,)),
    "draftwire_read_blocks_in_order": (None, (FLAG,)),
    "draftwire_gemm_kinds": (FLAG, ()),
    "draftwire_gemm": (None, (POINTER, FLAG, FLAG)),
    "draftwire_rows_at_once": (COUNT, (FLAG, FLAG, COUNT)),
    "draftwire_block_values": (None, (POINTER, POINTER, COUNT, COUNT, COUNT, FLAG)),
    "draftwire_rms_norm": (None, (POINTER, POINTER, POINTER, COUNT, COUNT, FLOAT, FLAG, FLAG, FLAG, FLAG)),
    "draftwire_rope": (None, (POINTER, FLAG)),
    "draftwire_write_kv": (None, (POINTER, FLAG)),
    "draftwire_angles": (None, (POINTER, FLAG)),
    "draftwire_gate": (None, (POINTER, POINTER, COUNT, COUNT, FLAG, FLAG, FLAG)),
    "draftwire_attention": (None, (POINTER, FLAG)),
    "draftwire_expert_rows": (None, (POINTER, FLAG, FLAG)),
    "draftwire_gate_heads": (None, (POINTER, POINTER, COUNT, COUNT, COUNT, COUNT, FLAG)),
    "draftwire_decoder_layer": (None, (POINTER, POINTER, POINTER, POINTER, POINTER, COUNT)),
    "draftwire_decoder_layers": (None, (POINTER, COUNT, POINTER)),
    "draftwire_recurrence": (None, (POINTER, FLAG)),
    "draftwire_delta_inputs": (None, (POINTER, POINTER, POINTER, COUNT, FLAG)),
    "draftwire_delta_outputs": (None, (POINTER, POINTER, POINTER, COUNT, FLAG)),
    "draftwire_delta_store": (None, (POINTER, POINTER)),
    "draftwire_delta_block": (None, (POINTER, POINTER, POINTER, POINTER, POINTER)),
    "draftwire_sample": (FLAG, (POINTER,)),
    "draftwire_parallel_for": (None, (TASK, POINTER, COUNT, COUNT, FLAG)),
}
"""Result and argument types of every library function that Python calls, as in `csrc/ops.h` and `thread_pool.h`."""
GEMM_KERNELS: tuple[Kernels, ...] = (
    "baseline", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx", "neon", "dotprod", "i8mm",
)  # fmt: skip
"""Kinds of gemm kernels, those of an architecture slowest first; the index is the library's number for the kind."""
_VECTORS: dict[Kernels, int] = {"baseline": 0, "avx2": 1, "avxvnni": 1, "avx512": 2}
"""The library's number for the kind of vectors that go with kernels; with all others the widest."""
PLAIN_GEMM = 0
"""The number of plain C."""
BF16_PRODUCTS = tuple(map(GEMM_KERNELS.index, ("avx512bf16", "amx")))
"""The numbers of those that use the processor's bfloat16 products, whose sums have bits of their own."""

_chosen: list[Kernels] = []
"""The kernels that this process uses; empty until they have been chosen."""


class KernelsError(Exception):
    """Raised for kernels that cannot run on this machine; the message names those that can."""


class LibraryMismatchError(Exception):
    """Raised for a compiled library that does not match the sources next to it; the message says how to rebuild it."""


def is_built() -> bool:
    """Returns whether the compiled library exists, whether it is used or not."""
    return LIBRARY.exists()


def available_kernels() -> tuple[Kernels, ...]:
    """The kernels that can run on this machine, slowest first. Raises LibraryMismatchError."""
    compiled = _compiled()
    if compiled is None:
        return ("torch",)
    kinds = int(compiled.draftwire_gemm_kinds())
    return ("torch", *(name for number, name in enumerate(GEMM_KERNELS) if kinds >> number & 1))


def use_kernels(kernels: Kernels) -> None:
    """Chooses the kernels of this process, before any model is loaded. Raises KernelsError, LibraryMismatchError."""
    there = available_kernels()
    if kernels != "auto" and kernels not in there:
        missing = "" if _compiled() is not None else ", as there is no compiled library"
        raise KernelsError(f"{kernels} cannot run on this machine{missing}; available: {', '.join(('auto', *there))}")
    chosen = there[-1] if kernels == "auto" else kernels
    compiled = _compiled()
    if compiled is not None and chosen != "torch":
        widest = int(compiled.draftwire_vector_kind())
        compiled.draftwire_use_vectors(_VECTORS.get(chosen, widest))
    _chosen[:] = [chosen]


def kernels_in_use() -> Kernels:
    """The kernels of this process, never "auto"; chooses the fastest if none have been chosen."""
    if not _chosen:
        use_kernels("auto")
    return _chosen[0]


def loaded() -> ctypes.CDLL:
    """The compiled library, for callers that have checked that it exists."""
    compiled = _compiled()
    assert compiled is not None, "callers check first that the library exists"
    return compiled


def library() -> ctypes.CDLL | None:
    """The compiled library; None if it was not built or is not used. Raises LibraryMismatchError."""
    return None if kernels_in_use() == "torch" else _compiled()


def gemm_kind() -> int:
    """The library's number for the gemm kernels in use; that of plain C if the library is not used."""
    kernels = kernels_in_use()
    return PLAIN_GEMM if kernels == "torch" else GEMM_KERNELS.index(kernels)


@cache
def _compiled() -> ctypes.CDLL | None:
    if not is_built():
        return None
    try:
        compiled = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise LibraryMismatchError(_mismatch(f"cannot be loaded ({error})")) from error
    _check(compiled)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(compiled, name)
        function.restype, function.argtypes = result, arguments
    return compiled


def _check(compiled: ctypes.CDLL) -> None:
    """Raises LibraryMismatchError if the source hash or the struct sizes differ from the library's.

    Wheels contain the sources as well, so the check is the same for every installation. A hash that the build wrote to
    a Python file could itself be out of date.
    """
    try:
        describe = compiled.draftwire_abi
    except AttributeError:
        raise LibraryMismatchError(_mismatch("contains no hash of its sources")) from None
    describe.restype, describe.argtypes = _FUNCTIONS["draftwire_abi"]
    abi = describe().contents
    found, expected = abi.source_hash.decode(), build.source_hash()
    if found != expected:
        raise LibraryMismatchError(_mismatch(f"was built from sources {found[:12]}, not {expected[:12]}"))
    sizes = {}
    for index in itertools.count():
        if abi.structs[index].name is None:
            break
        sizes[abi.structs[index].name.decode()] = abi.structs[index].size
    expected_sizes = {struct.__name__: ctypes.sizeof(struct) for struct in STRUCTS}
    if sizes != expected_sizes:
        differing = sorted({name for name, _ in sizes.items() ^ expected_sizes.items()})
        raise LibraryMismatchError(_mismatch(f"differs from structs.py in the sizes of {', '.join(differing)}"))


def _mismatch(how: str) -> str:
    return (
        f"the compiled library {LIBRARY.name} {how}; rebuild it: in a checkout by `make setup` or "
        "`python -m draftwire_core.engine.kernels.build`, otherwise by reinstalling draftwire-services"
    )


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
