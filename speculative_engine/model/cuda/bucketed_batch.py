"""Packed batches in tensors of fixed sizes, at fixed addresses from step to step."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import torch
from torch import Tensor

from speculative_engine.device_block import DeviceBlock
from speculative_engine.kv.kv_slots import PADDING_SLOT
from speculative_engine.model.cuda.lane_paths import LanePaths, ranges_of
from speculative_engine.model.cuda.step_buckets import Bucket
from speculative_engine.model.packed_batch import PackedBatch
from speculative_engine.sampling.step_draws import NUMBERS, StepDraws, write_none


class BucketedBatch:
    """The rows of one forward pass of a bucket's size.

    Adjacent rows that see the same committed tokens, such as those of one sequence, form a range. Padding rows form a
    range that sees no committed tokens; each writes to the padding slot and sees only itself.
    """

    def __init__(self, bucket: Bucket, device: torch.device):
        self.bucket = bucket
        rows, keys = bucket
        int64 = torch.int64
        self._block = DeviceBlock(
            {
                "token_ids": ((rows,), int64),
                "positions": ((rows,), int64),
                "slots": ((rows,), int64),
                "first_rows": ((rows + 1,), int64),
                "first_keys": ((rows + 1,), int64),
                "wanted": ((rows,), int64),
                "draws": ((NUMBERS, rows), int64),
                "tree": ((rows, rows), torch.bool),
                "key_slots": ((keys,), int64),  # last, so that unused ones are not copied
            },
            device,
        )
        placed = self._block.device
        self.token_ids, self.positions, self.slots = placed["token_ids"], placed["positions"], placed["slots"]
        """Of each row, int64 [rows]."""
        self.first_rows, self.first_keys = placed["first_rows"], placed["first_keys"]
        """First row and first key of each range, and the end of the last range, int64 [rows + 1]."""
        self.key_slots = placed["key_slots"]
        """By range and position, int64 [keys]."""
        self.tree = placed["tree"]
        """The rows of the step that each row sees, bool [rows, rows]."""
        self.draws = placed["draws"]
        """The numbers of the tokens to draw, int64 [NUMBERS, rows], see `StepDraws`."""
        self._wanted = 0
        self._found: dict[Hashable, Tensor] = {}
        # All rows are padding, in one range. A pass over zeros, as at a capture, would read beyond the ranges' ends.
        self._block.host["first_rows"][1:] = rows
        np.fill_diagonal(self._block.host["tree"], True)
        write_none(self._block.host["draws"])
        self._block.send(keys)

    def __len__(self) -> int:
        return self.bucket.rows

    @property
    def wanted(self) -> Tensor:
        """The rows whose results the last batch wants, in its order, int64 [wanted]."""
        return self._block.device["wanted"][: self._wanted]

    def fill(self, batch: PackedBatch, draws: StepDraws | None = None, *, whole: bool = True) -> np.ndarray:
        """Copies in a batch that fits the bucket; returns the new index of each of its rows, int64 [len(batch)].

        draws: the tokens to draw. whole: whether the pass returns the logits of all rows, or of the wanted ones alone.
        """
        count, rows = len(batch), self.bucket.rows
        ranges = ranges_of(batch.lanes)
        paths = LanePaths.of(ranges)
        order = paths.asked[np.lexsort((paths.asked, paths.ranges))]
        if len(order) != count or len(batch.wanted) > rows:
            raise ValueError(f"lanes contain {len(order)} of {count} rows, of which {len(batch.wanted)} are wanted")
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count)
        self._block.begin()
        host = self._block.host
        for name, given, padding in zip(
            ("token_ids", "positions", "slots"), batch.host.numpy(), (0, 0, PADDING_SLOT), strict=True
        ):
            host[name][:count], host[name][count:] = given[order], padding
        self._wanted = len(batch.wanted)
        host["wanted"][: self._wanted] = wanted = place[batch.wanted]
        if draws is None:
            write_none(host["draws"])
        else:
            draws.write(host["draws"], (wanted if whole else np.arange(self._wanted))[: len(draws)])
        contexts = [lanes[0].context for lanes in ranges]
        row_ends = np.bincount(paths.ranges, minlength=len(ranges)).cumsum()
        key_ends = np.cumsum([len(context) for context in contexts], dtype=np.int64)
        keys = int(key_ends[-1]) if ranges else 0
        for name, ends, last in (("first_rows", row_ends, rows), ("first_keys", key_ends, keys)):
            host[name][1 : len(ends) + 1], host[name][len(ends) + 1 :] = ends, last
        if contexts:
            np.concatenate(contexts, out=host["key_slots"][:keys])
        tree = host["tree"]
        tree[:] = False
        paths.mark(tree, place)
        padding_rows = np.arange(count, rows)
        tree[padding_rows, padding_rows] = True
        self._block.send(keys)
        return place

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
    return sum(len(lanes[0].context) for lanes in ranges_of(batch.lanes))
