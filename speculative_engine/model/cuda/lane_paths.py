"""The rows of a batch's lanes in flat arrays: a call for each lane would take longer than a step may."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from speculative_engine.model.packed_batch import Lane

_LONG = 64
"""Rows of a lane that are better marked as a triangle than pair by pair."""


class LanePaths(NamedTuple):
    """The rows of all lanes, one after another; int64 arrays."""

    lanes: list[Lane]
    rows: np.ndarray
    """[n]"""
    starts: np.ndarray
    """Where the lane of each of the `rows` begins, [n]."""
    queries: np.ndarray
    """Which of the `rows` are queries, [asked] indices."""
    asked: np.ndarray
    """Their rows, [asked]."""
    ranges: np.ndarray
    """Their ranges, [asked]."""

    @classmethod
    def of(cls, ranges: list[list[Lane]]) -> LanePaths:
        """Lists the rows of lanes, by range."""
        lanes = list(chain.from_iterable(ranges))
        lengths = np.array([len(lane.rows) for lane in lanes], dtype=np.int64)
        first = np.array([lane.first_query for lane in lanes], dtype=np.int64)
        begins = lengths.cumsum() - lengths
        rows = np.fromiter(chain.from_iterable(lane.rows for lane in lanes), np.int64, int(lengths.sum()))
        queries = (np.arange(len(rows)) >= np.repeat(begins + first, lengths)).nonzero()[0]
        sizes = [sum(len(lane.rows) - lane.first_query for lane in lanes) for lanes in ranges]
        return cls(
            lanes, rows, np.repeat(begins, lengths), queries, rows[queries], np.repeat(np.arange(len(ranges)), sizes)
        )

    def mark(self, tree: np.ndarray, place: np.ndarray) -> None:
        """Sets in `tree`, bool [rows, rows], which rows each query sees; place: the new index of each row."""
        long = [lane for lane in self.lanes if len(lane.rows) > _LONG]
        for lane in long:
            path, first = place[lane.rows], lane.first_query
            tree[np.ix_(path[first:], path)] = np.tri(len(path) - first, len(path), first, dtype=bool)
        queries = self.queries
        if long:
            lengths = np.repeat([len(lane.rows) for lane in self.lanes], [len(lane.rows) for lane in self.lanes])
            queries = queries[lengths[queries] <= _LONG]
        seen = queries - self.starts[queries] + 1
        ends = seen.cumsum()
        keys = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.starts[queries] - (ends - seen), seen)
        tree[np.repeat(place[self.rows[queries]], seen), place[self.rows[keys]]] = True


def ranges_of(lanes: list[Lane]) -> list[list[Lane]]:
    """Groups adjacent lanes that share a context."""
    ranges: list[list[Lane]] = []
    for lane in lanes:
        if ranges and ranges[-1][0].context is lane.context:
            ranges[-1].append(lane)
        else:
            ranges.append([lane])
    return ranges
