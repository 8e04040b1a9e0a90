"""The rows of a batch's lanes in flat arrays: a call for each lane would take longer than a step may."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from draftwire_core.engine.model.packed_batch import Lane


class LanePaths(NamedTuple):
    """The rows of all lanes, one after another; int64 arrays."""

    lanes: list[Lane]
    rows: np.ndarray
    """[n]"""
    starts: np.ndarray
    """Beginning of the lane of each of the `rows`, [n]."""
    queries: np.ndarray
    """Indices of the `rows` that are queries, [asked]."""
    asked: np.ndarray
    """Rows of the queries, [asked]."""
    ranges: np.ndarray
    """Ranges of the queries, [asked]."""

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


def ranges_of(lanes: list[Lane]) -> list[list[Lane]]:
    """Groups adjacent lanes that share a context."""
    ranges: list[list[Lane]] = []
    for lane in lanes:
        if ranges and ranges[-1][0].context is lane.context:
            ranges[-1].append(lane)
        else:
            ranges.append([lane])
    return ranges
