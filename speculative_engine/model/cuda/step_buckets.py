"""The bucket sizes that steps are padded to on GPUs, so that each can be captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the buckets. Larger steps are prompts, or batches no longer bound by reading the weights."""
KEYS = (1024, 4096, 16384, 65536)
"""Committed keys of the buckets, of all sequences together."""
_ROWS_STEP, _KEYS_STEP = 64, 1024
"""Sizes beyond the buckets are rounded up to multiples of these."""


class Bucket(NamedTuple):
    """The size of a step."""

    rows: int
    keys: int
    """Committed keys that the step's sequences see, in total."""


class StepBuckets:
    """A set of buckets: all pairs of its rows and keys."""

    def __init__(self, rows: tuple[int, ...] = ROWS, keys: tuple[int, ...] = KEYS):
        """rows, keys: ascending and positive. Raises ValueError."""
        for name, sizes in (("rows", rows), ("keys", keys)):
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"{name} of buckets must be positive and ascending, got {sizes}")
        self.rows = rows
        self.keys = keys

    @classmethod
    def within(cls, slots: int) -> StepBuckets:
        """The buckets that are useful for a KV cache of `slots` slots.

        A slot that several sequences share counts as a key for each, so there may be more keys than slots.
        """
        smallest = next((keys for keys in KEYS if keys >= slots), KEYS[-1])
        return cls(keys=tuple(keys for keys in KEYS if keys <= smallest))

    def __iter__(self) -> Iterator[Bucket]:
        """All buckets, the largest first, so that later captures fit into memory that is already allocated."""
        return (Bucket(rows, keys) for rows in reversed(self.rows) for keys in reversed(self.keys))

    def bucket(self, rows: int, keys: int) -> Bucket | None:
        """The smallest bucket that holds a step; None if none does."""
        if rows > self.rows[-1] or keys > self.keys[-1]:
            return None
        return Bucket(
            next(size for size in self.rows if size >= rows), next(size for size in self.keys if size >= keys)
        )

    @staticmethod
    def rounded(rows: int, keys: int) -> Bucket:
        """The rounded size of a step that no bucket holds."""
        return Bucket(-(-rows // _ROWS_STEP) * _ROWS_STEP, max(_KEYS_STEP, -(-keys // _KEYS_STEP) * _KEYS_STEP))
