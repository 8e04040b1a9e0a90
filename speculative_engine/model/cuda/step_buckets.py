"""Sizes of steps: on GPUs a step is padded to one of a few, each of which can be captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the buckets. What has more is prompts, or far from the roof that batching lifts a step off."""
KEYS = (1024, 4096, 16384, 65536)
"""Committed keys of the buckets, of all sequences together."""
_ROWS_STEP, _KEYS_STEP = 64, 1024
"""What sizes beyond the buckets are rounded up to multiples of."""


class Bucket(NamedTuple):
    """The size of a step."""

    rows: int
    keys: int
    """Committed keys that its sequences see, all together."""


class StepBuckets:
    """The buckets there are."""

    def __init__(self, rows: tuple[int, ...] = ROWS, keys: tuple[int, ...] = KEYS):
        """rows, keys: ascending and positive. Raises ValueError."""
        for name, sizes in (("rows", rows), ("keys", keys)):
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"{name} of buckets must be positive and ascend, got {sizes}")
        self.rows = rows
        self.keys = keys

    @classmethod
    def within(cls, slots: int) -> StepBuckets:
        """Those of use with a KV cache of so many slots. Sequences that share slots see them once each, so there may
        be more keys than slots."""
        smallest = next((keys for keys in KEYS if keys >= slots), KEYS[-1])
        return cls(keys=tuple(keys for keys in KEYS if keys <= smallest))

    def __iter__(self) -> Iterator[Bucket]:
        """All of them, the largest first: what is captured later then fits into memory that is there."""
        return (Bucket(rows, keys) for rows in reversed(self.rows) for keys in reversed(self.keys))

    def bucket(self, rows: int, keys: int) -> Bucket | None:
        """The smallest that holds a step; None if none does."""
        if rows > self.rows[-1] or keys > self.keys[-1]:
            return None
        return Bucket(
            next(size for size in self.rows if size >= rows), next(size for size in self.keys if size >= keys)
        )

    @staticmethod
    def rounded(rows: int, keys: int) -> Bucket:
        """The size for a step that no bucket holds."""
        return Bucket(-(-rows // _ROWS_STEP) * _ROWS_STEP, max(_KEYS_STEP, -(-keys // _KEYS_STEP) * _KEYS_STEP))
