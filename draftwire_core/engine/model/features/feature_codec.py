"""Features as bytes: one vector after another, in a float type or in 8 bits.

In 8 bits a vector x is its scale s = max|x| / 127, a float32, and the integers round(x / s). Each element is then off
by at most s / 2, that is 1/254 of the largest magnitude in its vector.
"""

from __future__ import annotations

import numpy as np
import torch

FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
INT8 = "int8"
FEATURE_TYPES = (*FLOATS, INT8)
_SCALE = np.dtype("<f4")


def feature_bytes(width: int, dtype: str) -> int:
    """Returns the size in bytes of a feature with `width` elements. Raises KeyError for an unknown type."""
    return _SCALE.itemsize + width if dtype == INT8 else width * FLOATS[dtype].itemsize


def feature_count(values: bytes, width: int, dtype: str) -> int:
    """Returns the number of encoded features. Raises ValueError for bytes that are not whole features, or none."""
    size = feature_bytes(width, dtype)
    if not values or len(values) % size:
        raise ValueError(f"must be a multiple of {size} bytes, one or more features of {width} {dtype}")
    return len(values) // size


def encode(features: torch.Tensor, dtype: str) -> bytes:
    """Returns features [n, width], on the host, as bytes."""
    if dtype != INT8:
        values: bytes = features.to(FLOATS[dtype]).contiguous().view(torch.uint8).numpy().tobytes()
        return values
    exact = features.float()
    scales = exact.abs().amax(dim=1, keepdim=True) / 127
    whole = (exact / scales.where(scales > 0, 1.0)).round().clamp(-127, 127).to(torch.int8)
    rows = np.empty((len(features), _SCALE.itemsize + features.shape[1]), dtype=np.uint8)
    rows[:, : _SCALE.itemsize] = scales.numpy().astype(_SCALE).view(np.uint8)
    rows[:, _SCALE.itemsize :] = whole.numpy().view(np.uint8)
    return rows.tobytes()


def decode(values: bytes, width: int, dtype: str) -> torch.Tensor:
    """Returns features [n, width] from their bytes; those in 8 bits become float32. Raises ValueError for bytes that
    are not whole features."""
    count = feature_count(values, width, dtype)
    if dtype != INT8:
        return torch.frombuffer(bytearray(values), dtype=FLOATS[dtype]).view(count, width)
    rows = np.frombuffer(values, dtype=np.uint8).reshape(count, -1)
    scales = np.ascontiguousarray(rows[:, : _SCALE.itemsize]).view(_SCALE)
    whole = rows[:, _SCALE.itemsize :].view(np.int8)
    return torch.from_numpy(whole.astype(np.float32) * scales)
