"""Features of random numbers: a drafter may guess badly from them, and has to keep the rules all the same."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from functools import lru_cache

from draftwire.v1 import features_pb2

TYPES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1}
"""Types of features in messages, with the bytes of an element."""
WEIGHTS_TYPES = {name: size for name, size in TYPES.items() if name != "int8"}
"""Types of the weights of a map."""
MOST_BYTES = 1 << 20
"""Most bytes of values in a message."""
_MOST_LAYERS = 16
_WIDEST, _LARGEST = 4, 16
"""Most times that a feature may be wider than a hidden state, and most weights of a map, in matrices of the hidden size
squared, of any verifier."""
_MOST_EPSILON = 1.0
_SCALE_BYTES = 4
_DIFFERENT = 16
"""Number of different features, which come round and round."""


class Features:
    """Makes the features that a drafter asks for."""

    def __init__(self, kind: features_pb2.FeatureMap) -> None:
        """kind: the map of the drafter's hello, of a known type."""
        self._width, self._dtype = kind.width, kind.dtype
        self.size = kind.width * TYPES[kind.dtype] + (_SCALE_BYTES if kind.dtype == "int8" else 0)
        """Bytes of a feature."""

    def values(self, begin: int, end: int) -> bytes:
        """Returns the features of some positions."""
        return b"".join(_feature(self._width, self._dtype, at % _DIFFERENT) for at in range(begin, end))

    def parts(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yields the features of some positions in parts that fit into messages, each with its first position."""
        most = max(1, MOST_BYTES // self.size)
        for first in range(begin, end, most):
            yield first, self.values(first, min(first + most, end))


@lru_cache(maxsize=_DIFFERENT)
def _feature(width: int, dtype: str, number: int) -> bytes:
    draw = random.Random(number)
    if dtype == "int8":
        return struct.pack("<f", 1 / 64) + bytes(draw.getrandbits(8) for _ in range(width))
    elements = [draw.gauss(0.0, 1.0) for _ in range(width)]
    if dtype == "float16":
        return struct.pack(f"<{width}e", *elements)
    packed = struct.pack(f"<{width}f", *elements)
    if dtype == "float32":
        return packed
    return b"".join(packed[at + 2 : at + 4] for at in range(0, len(packed), 4))  # bfloat16: the upper half


def map_fault(kind: features_pb2.FeatureMap) -> str:
    """Returns what is wrong with a map; empty if nothing is."""
    if not 1 <= len(kind.layers) <= _MOST_LAYERS or len(set(kind.layers)) < len(kind.layers):
        return f"layers is {list(kind.layers)[: _MOST_LAYERS + 1]}, not 1 to {_MOST_LAYERS} different ones"
    for name in ("hidden_size", "width"):
        if not getattr(kind, name):
            return f"{name} is 0"
    if kind.dtype not in TYPES:
        return f"dtype is {kind.dtype[:80]!r}, not one of {', '.join(TYPES)}"
    if kind.weights_dtype not in WEIGHTS_TYPES:
        return f"weights_dtype is {kind.weights_dtype[:80]!r}, not one of {', '.join(WEIGHTS_TYPES)}"
    if kind.norm_states and kind.norm_each_state:
        return "both norm_states and norm_each_state are set"
    if kind.unmapped and kind.width != len(kind.layers) * kind.hidden_size:
        return f"width is {kind.width} without a map, for {len(kind.layers)} layers of {kind.hidden_size}"
    widest = _WIDEST * kind.hidden_size
    if not kind.unmapped:
        widest = min(widest, _LARGEST * kind.hidden_size // len(kind.layers))
    if kind.width > widest:
        return f"width is {kind.width}, more than the {widest} that a verifier takes with {len(kind.layers)} layers"
    if not 0 <= kind.norm_epsilon <= _MOST_EPSILON:  # NaN is not
        return f"norm_epsilon is {kind.norm_epsilon:g}, not from 0 to {_MOST_EPSILON:g}"
    return ""


def weight_bytes(kind: features_pb2.FeatureMap) -> int:
    """Returns the bytes of all weights of a map."""
    states = len(kind.layers) * kind.hidden_size
    weights = states * (kind.norm_states or kind.norm_each_state)
    weights += 0 if kind.unmapped else kind.width * states
    weights += kind.width * kind.norm_features
    return weights * WEIGHTS_TYPES[kind.weights_dtype]
