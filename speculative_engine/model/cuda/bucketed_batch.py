"""Packed batches in tensors of fixed sizes, at fixed addresses from step to step."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import torch
from torch import Tensor

from speculative_engine.device_copy import copy_into
from speculative_engine.kv.kv_slots import PADDING_SLOT
from speculative_engine.model.cuda.step_buckets import Bucket
from speculative_engine.model.packed_batch import Lane, PackedBatch


class BucketedBatch:
    """The rows of one forward pass of a bucket's size.

    Adjacent rows that see the same committed tokens, such as those of one sequence, form a range. Padding rows form a
    range that sees no committed tokens; each writes to the padding slot and sees only itself.
    """

    def __init__(self, bucket: Bucket, device: torch.device):
        self.bucket = bucket
        rows, keys = bucket
        sizes = [rows, rows, rows, rows + 1, rows + 1, keys]
        # A single tensor, since the overhead of a copy to a device dominates. Keys come last, so that unused ones are
        # not copied.
        self._host = torch.zeros(sum(sizes), dtype=torch.int64)
        self._device = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        parts = self._device.split(sizes)
        self.token_ids, self.positions, self.slots, self.first_rows, self.first_keys, self.key_slots = parts
        """int64 tensors. token_ids, positions, slots: of each row [rows]. first_rows, first_keys: where each range of
        rows, and its keys, begin and the last ends [rows + 1]. key_slots: by range and position [keys]."""
        self._host_parts = [part.numpy() for part in self._host.split(sizes)]
        self._host_tree = torch.zeros(rows, rows, dtype=torch.bool)
        self.tree = torch.zeros(rows, rows, dtype=torch.bool, device=device)
        """The rows of the step that each row sees, bool [rows, rows]."""
        self._found: dict[Hashable, Tensor] = {}
        # All rows are padding, in one range. A pass over zeros, as at a capture, would read beyond the ranges' ends.
        self._host_parts[3][1:] = rows
        self._host_tree.fill_diagonal_(True)
        self._place(len(self._host))

    def __len__(self) -> int:
        return self.bucket.rows

    def fill(self, batch: PackedBatch) -> np.ndarray:
        """Copies in a batch that fits the bucket; returns the new index of each of its rows, int64 [len(batch)]."""
        count, rows = len(batch), self.bucket.rows
        token_ids, positions, slots, first_rows, first_keys, key_slots = self._host_parts
        ranges = _ranges(batch.lanes)
        asked = [np.sort(np.concatenate([_asked(lane) for lane in lanes])) for lanes in ranges]
        order = np.concatenate([*asked, np.empty(0, dtype=np.int64)])
        if len(order) != count:
            raise ValueError(f"lanes contain {len(order)} of {count} rows")
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count)
        for fixed, given in zip((token_ids, positions, slots), batch.host.numpy(), strict=True):
            fixed[:count] = given[order]
        token_ids[count:], positions[count:], slots[count:] = 0, 0, PADDING_SLOT
        tree = self._host_tree.numpy()
        tree[:] = False
        row = key = 0
        for index, lanes in enumerate(ranges):
            first_rows[index], first_keys[index] = row, key
            context = lanes[0].context
            key_slots[key : key + len(context)] = context
            key += len(context)
            for lane in lanes:
                path = place[lane.rows]
                row += len(path) - lane.first_query
                tree[np.ix_(path[lane.first_query :], path)] = np.tri(
                    len(path) - lane.first_query, len(path), lane.first_query, dtype=bool
                )
        first_rows[len(ranges) :] = rows
        first_keys[len(ranges) :] = key
        if len(ranges) < rows:
            first_rows[len(ranges)] = count
        padding = np.arange(count, rows)
        tree[padding, padding] = True
        self._place(len(self._host) - len(key_slots) + key)
        return place

    def _place(self, used: int) -> None:
        """Copies to the device, of the numbers only the first `used`."""
        copy_into(self._device[:used], self._host[:used])
        copy_into(self.tree, self._host_tree)

    def begin(self) -> None:
        """Begins a forward pass: clears the masks and ranges that the layers of a pass share."""
        self._found.clear()

    def ranges(self) -> tuple[Tensor, Tensor]:
        """Boundaries of the ranges of rows and of their keys, int32 [rows + 1] each."""
        return self._once("rows", lambda: self.first_rows.to(torch.int32)), self._once(
            "keys", lambda: self.first_keys.to(torch.int32)
        )

    def empty(self) -> Tensor:
        """Mask of the rows that see no committed keys, bool [rows]."""
        return self._once("empty", lambda: self._bounds()[0] == self._bounds()[1])

    def seen(self, window: int | None) -> Tensor:
        """Mask of the committed keys that each row sees, bool [rows, keys]: its range's, within a sliding `window`."""

        def find() -> Tensor:
            key = torch.arange(self.bucket.keys, device=self.positions.device)
            first, last = (bound.unsqueeze(1) for bound in self._bounds())
            seen = (key >= first) & (key < last)
            return seen if window is None else seen & (key - first > self.positions.unsqueeze(1) - window)

        return self._once(("seen", window), find)

    def seen_rows(self, window: int | None) -> Tensor:
        """Mask of the step's rows that each row sees, within a sliding `window`, bool [rows, rows]."""
        if window is None:
            return self.tree
        near = self.positions.unsqueeze(0) > self.positions.unsqueeze(1) - window
        return self._once(("seen rows", window), lambda: self.tree & near)

    def _bounds(self) -> Tensor:
        """The first key that each row sees, and the key after the last, int64 [2, rows]."""

        def find() -> Tensor:
            row = torch.arange(self.bucket.rows, device=self.positions.device)
            ranges = torch.searchsorted(self.first_rows[1:], row, right=True)
            return torch.stack([self.first_keys[ranges], self.first_keys[ranges + 1]])

        return self._once("bounds", find)

    def _once(self, name: Hashable, find: Callable[[], Tensor]) -> Tensor:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = find()
        return found


def key_count(batch: PackedBatch) -> int:
    """Total number of committed keys that the sequences of a batch see."""
    return sum(len(lanes[0].context) for lanes in _ranges(batch.lanes))


def _ranges(lanes: list[Lane]) -> list[list[Lane]]:
    """Groups adjacent lanes that share a context."""
    ranges: list[list[Lane]] = []
    for lane in lanes:
        if ranges and ranges[-1][0].context is lane.context:
            ranges[-1].append(lane)
        else:
            ranges.append([lane])
    return ranges


def _asked(lane: Lane) -> np.ndarray:
    return np.array(lane.rows[lane.first_query :], dtype=np.int64)
