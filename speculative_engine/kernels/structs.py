"""The structs that Python passes to the compiled library: twins of those in `csrc/ops.h`, by the same names.

Fields are described there. `library` compares the sizes when it loads the library.
"""

from __future__ import annotations

import ctypes
from typing import Any

POINTER, COUNT, FLAG, FLOAT, DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float, ctypes.c_double


def _fields(kind: type[Any], names: str) -> tuple[tuple[str, type[Any]], ...]:
    return tuple((name, kind) for name in names.split())


class Gemm(ctypes.Structure):
    """Rows times a packed weight, bfloat16, or int8 with a scale for each output."""

    _fields_ = (*_fields(POINTER, "rows weight scales bias out"), *_fields(COUNT, "row_count outputs inputs"))


class Rope(ctypes.Structure):
    """Rotary positions of queries and keys; keys and values are written to their slots."""

    _fields_ = (
        *_fields(POINTER, "projected cosines sines query_weight key_weight slots query keys values"),
        *_fields(COUNT, "rows heads kv_heads dim capacity"),
        *_fields(FLOAT, "scale eps"),
        *_fields(FLAG, "bf16"),
    )


class Attention(ctypes.Structure):
    """Attention over KV slots."""

    _fields_ = (
        *_fields(POINTER, "query keys values out scratch sinks seen lanes rows counts"),
        *_fields(COUNT, "row_count kv_heads shared slots key_dim value_dim"),
        *_fields(COUNT, "longest window lane_count scratch_size"),
        *_fields(FLOAT, "softcap"),
        *_fields(FLAG, "bf16"),
    )


class Linear(ctypes.Structure):
    """A linear layer of a decoder layer."""

    _fields_ = (*_fields(POINTER, "weight scales bias"), *_fields(COUNT, "outputs inputs"))


class Layer(ctypes.Structure):
    """A decoder layer: its weights and sizes, the same for all passes."""

    _fields_ = (
        *_fields(Linear, "project output gate_and_up down"),
        *_fields(POINTER, "input_norm output_norm query_norm key_norm"),
        *_fields(COUNT, "heads kv_heads dim window"),
        *_fields(FLOAT, "input_eps output_eps head_eps scale"),
        *_fields(FLAG, "kind"),
    )


class Pass(ctypes.Structure):
    """A forward pass: its rows and its working memory, the same for all layers."""

    _fields_ = (
        *_fields(POINTER, "hidden cosines sines slots seen lanes lane_rows counts"),
        *_fields(POINTER, "narrow wide gated query attended scores"),
        *_fields(COUNT, "rows capacity longest lane_count scratch_size"),
        *_fields(FLAG, "threads"),
    )


class Filters(ctypes.Structure):
    """The token filters of one row."""

    _fields_ = (*_fields(COUNT, "top_k"), *_fields(DOUBLE, "top_p typical_p"), *_fields(FLOAT, "log_min_p"))


class Sample(ctypes.Structure):
    """The best tokens of each row under coupled noise."""

    _fields_ = (
        *_fields(POINTER, "logits temperatures seeds positions greedy filters tokens scores log_probs"),
        *_fields(COUNT, "row_count vocabulary stride wanted"),
        *_fields(FLAG, "bf16"),
    )


STRUCTS: tuple[type[ctypes.Structure], ...] = (Gemm, Rope, Attention, Linear, Layer, Pass, Filters, Sample)
"""The structs whose sizes are compared, in no order."""


class StructSize(ctypes.Structure):
    """A struct's name and its size in bytes as the library has it."""

    _fields_ = (("name", ctypes.c_char_p), ("size", COUNT))


class Abi(ctypes.Structure):
    """The source hash that the library was built with, and its structs, ended by one without a name.

    The hash comes first and is compared first: the other fields may be different in a library of other sources.
    """

    _fields_ = (("source_hash", ctypes.c_char_p), ("structs", ctypes.POINTER(StructSize)))


TASK = ctypes.CFUNCTYPE(None, POINTER, COUNT, COUNT, FLAG)
"""What `draftwire_parallel_for` runs: work, first item, the item after the last, thread id."""
