"""The structs that Python passes to the compiled library, mirrors of the structs of the same names in `csrc/ops.h`.

The header describes the fields. `library` compares the sizes when it loads the library.
"""

from __future__ import annotations

import ctypes
from typing import Any

POINTER, COUNT, FLAG, FLOAT, DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float, ctypes.c_double


def _fields(kind: type[Any], names: str) -> tuple[tuple[str, type[Any]], ...]:
    return tuple((name, kind) for name in names.split())


class Gemm(ctypes.Structure):
    """A product of rows and a packed weight."""

    _fields_ = (
        *_fields(POINTER, "rows weight scales bias out working"),
        *_fields(COUNT, "row_count outputs stride inputs group"),
        *_fields(FLAG, "type wide wide_rows"),
    )


class Rope(ctypes.Structure):
    """Rotary position embedding of queries and keys; keys and values are written to their slots."""

    _fields_ = (
        *_fields(POINTER, "projected cosines sines query_weight key_weight value_weight slots query keys values"),
        *_fields(COUNT, "rows heads kv_heads dim rotary capacity"),
        *_fields(FLOAT, "scale eps"),
        *_fields(FLAG, "bf16 weight_bf16 norms_whole kv_type gated kv_parts"),
    )


class KvRows(ctypes.Structure):
    """Keys or values that are written to their slots in 8 bits."""

    _fields_ = (
        *_fields(POINTER, "source"),
        *_fields(COUNT, "head_stride row_stride"),
        *_fields(POINTER, "slots to"),
        *_fields(COUNT, "heads rows dim capacity"),
        *_fields(FLAG, "bf16"),
    )


class Angles(ctypes.Structure):
    """Cosines and sines of rotary position embeddings."""

    _fields_ = (
        *_fields(POINTER, "positions frequencies cosines sines"),
        *_fields(COUNT, "rows dim"),
        *_fields(FLOAT, "scaling"),
        *_fields(FLAG, "bf16"),
    )


class Attention(ctypes.Structure):
    """Attention over KV slots."""

    _fields_ = (
        *_fields(POINTER, "query keys values out scratch sinks seen lanes rows counts"),
        *_fields(COUNT, "row_count kv_heads shared slots key_dim value_dim"),
        *_fields(COUNT, "longest window chunk lane_count scratch_size"),
        *_fields(FLOAT, "softcap"),
        *_fields(FLAG, "kv_type"),
    )


class Linear(ctypes.Structure):
    """A linear layer of a decoder layer or of an expert, or a part of one."""

    _fields_ = (
        *_fields(POINTER, "weight scales bias next"),
        *_fields(COUNT, "outputs inputs group"),
        *_fields(FLAG, "type"),
    )


class ExpertRows(ctypes.Structure):
    """Rows, sorted by expert, that are multiplied by the weights of their experts."""

    _fields_ = (
        *_fields(POINTER, "linears experts rows out working"),
        *_fields(COUNT, "row_count inputs outputs"),
    )


class Layer(ctypes.Structure):
    """The weights and sizes of a decoder layer, the same for all passes."""

    _fields_ = (
        *_fields(Linear, "project output gate_and_up down token_gate token_output"),
        *_fields(POINTER, "input_norm output_norm attended_norm forwarded_norm token_norm feature_norm"),
        *_fields(POINTER, "query_norm key_norm value_norm sinks"),
        *_fields(COUNT, "width heads kv_heads dim rotary window"),
        *_fields(FLOAT, "input_eps output_eps head_eps scale softcap multiplier factor"),
        *_fields(FLAG, "gate norms_whole gated kv_parts normed_residual kind"),
    )


class Pass(ctypes.Structure):
    """The rows and the working memory of a forward pass, the same for all layers."""

    _fields_ = (
        *_fields(POINTER, "hidden residual cosines sines slots seen lanes lane_rows counts"),
        *_fields(POINTER, "normed product gated query attended scores working"),
        *_fields(COUNT, "rows capacity longest lane_count scratch_size"),
        *_fields(FLAG, "threads kv_type"),
    )


class LayerCall(ctypes.Structure):
    """A layer with its keys and values, the same for all passes over one KV cache."""

    _fields_ = (*_fields(POINTER, "layer keys values"), *_fields(COUNT, "angles"))


class Recurrence(ctypes.Structure):
    """Recurrent layers over the token trees of a batch."""

    _fields_ = (
        *_fields(POINTER, "inputs gates stored_inputs stored_gates windows states weight bias direct rates"),
        *_fields(POINTER, "mixed out scratch gathered items tap_sources groups saves"),
        *_fields(COUNT, "item_count group_count save_count channels taps"),
        *_fields(COUNT, "value_heads key_heads key_dim value_dim query_at key_at value_at levels"),
        *_fields(FLOAT, "eps scale"),
        *_fields(FLAG, "bf16 activates normalises corrects decay_each_key decays"),
    )


class DeltaNet(ctypes.Structure):
    """A gated delta net: its projections, and what is between them besides the recurrence."""

    _fields_ = (
        *_fields(Linear, "project output"),
        *_fields(POINTER, "input_norm output_norm rates bias norm"),
        ("places", COUNT * 6),
        ("strides", COUNT * 6),
        *_fields(COUNT, "width"),
        *_fields(FLOAT, "input_eps eps strength"),
    )


class StoredRows(ctypes.Structure):
    """Rows of a batch whose inputs are kept."""

    _fields_ = (*_fields(POINTER, "rows places"), *_fields(COUNT, "count"))


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


WEIGHT_TYPES = (
    "bf16", "f16", "int8", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "mxfp4",
    "group4", "group8", "fp8",
)  # fmt: skip
"""The types of weights; the index is the library's number."""

DECAYS = ("head", "value", "rate", "mean")
"""The decay of an element of a recurrent state; the index is the library's number."""

GATES = ("silu", "gelu_tanh")
"""The activation of gates; the index is the library's number."""

STRUCTS: tuple[type[ctypes.Structure], ...] = (
    Gemm, Rope, KvRows, Angles, Attention, Linear, ExpertRows, Layer, Pass, LayerCall, Recurrence,
    DeltaNet, StoredRows, Filters, Sample
)  # fmt: skip
"""The structs whose sizes are compared, in any order."""


class StructSize(ctypes.Structure):
    """A struct's name and its size in bytes in the library."""

    _fields_ = (("name", ctypes.c_char_p), ("size", COUNT))


class Abi(ctypes.Structure):
    """The source hash that the library was built with, and its structs, terminated by one without a name.

    The hash comes first and is compared first, since the other fields may differ in a library of other sources.
    """

    _fields_ = (("source_hash", ctypes.c_char_p), ("structs", ctypes.POINTER(StructSize)))


TASK = ctypes.CFUNCTYPE(None, POINTER, COUNT, COUNT, FLAG)
"""The function that `draftwire_parallel_for` runs, of the work, the first item, the item after the last, the thread."""
