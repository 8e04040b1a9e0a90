"""A list of tokens for each token of a vocabulary, in two arrays, since 250,000 tuples would take tens of megabytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import numpy as np


class TokenLists(Sequence[tuple[int, ...]]):
    """Lists of tokens by index."""

    def __init__(self, tokens: np.ndarray, counts: np.ndarray):
        """tokens: all lists one after another, int32 [total]. counts: the number of tokens of each, int32 [lists]."""
        self.tokens = tokens
        self.counts = counts
        self.starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        """Index in `tokens` at which each list begins, and the end of the last one, int64 [lists + 1]."""

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> TokenLists:
        """Returns the same lists as arrays."""
        counts = np.fromiter(map(len, lists), np.int32, len(lists))
        tokens = np.fromiter((token for each in lists for token in each), np.int32, int(counts.sum()))
        return cls(tokens, counts)

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, ...]]: ...

    def __getitem__(self, index: int | slice) -> tuple[int, ...] | Sequence[tuple[int, ...]]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        start = int(self.starts[:-1][index])
        return tuple(self.tokens[start : start + int(self.counts[index])].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        tokens = self.tokens.tolist()
        start = 0
        for count in self.counts.tolist():
            yield tuple(tokens[start : start + count])
            start += count

    @property
    def firsts(self) -> np.ndarray:
        """The first token of each list, int64 [lists]; -1 for an empty one."""
        return self.nth(0)

    def nth(self, place: int, indices: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The token at a place of each list, or of those at some indices, int64; -1 for a list that is shorter."""
        starts, has = self.starts[:-1][indices] + place, self.counts[indices] > place
        found = np.full(len(starts), -1, np.int64)
        found[has] = self.tokens[starts[has]]
        return found

    def kept(self, keep: np.ndarray) -> TokenLists:
        """Returns the lists with those emptied that a mask [lists] leaves out."""
        return TokenLists(self.tokens[np.repeat(keep, self.counts)], np.where(keep, self.counts, 0).astype(np.int32))

    def replaced(self, lists: Mapping[int, Sequence[int]]) -> TokenLists:
        """Returns the lists with some of them replaced, by index."""
        if not lists:
            return self
        kept = np.ones(len(self), np.bool_)
        kept[list(lists)] = False
        rest = self.kept(kept)
        indices = sorted(lists)
        places = np.repeat(rest.starts[indices], [len(lists[index]) for index in indices])
        counts = rest.counts.copy()
        counts[indices] = [len(lists[index]) for index in indices]
        return TokenLists(
            np.insert(rest.tokens, places, [token for index in indices for token in lists[index]]), counts
        )
