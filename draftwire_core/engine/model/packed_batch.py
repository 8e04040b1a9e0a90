"""The layout of one packed forward pass: the tokens of all sequences in a single batch of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.kernels.attention import SlotLanes
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT, SlotList
from draftwire_core.engine.kv.recurrent_states import LaneState
from draftwire_core.engine.model.features.taps import Tap

KEY_BLOCK = 128
"""Positions of a block of keys. Attention sums by blocks, so that every matrix product has the same inner size."""


@dataclass(slots=True)
class Lane:
    """A path from a sequence's first token to a leaf of its token tree.

    Its keys are the committed tokens before its rows (`context`, int64 slots by position), followed by `rows`, indices
    of packed rows in order of position. Its queries are the rows from `first_query` on: a branch of a tree repeats its
    ancestors as keys, but queries only rows that no earlier lane has queried. Since keys are in order of position, a
    row sums its attention in the same order whether it was drafted or decoded plainly.
    """

    context: np.ndarray
    rows: list[int]
    first_query: int = 0
    state: LaneState | None = None
    """The plan of recurrent layers; without it they start at the first row as if nothing preceded it."""
    owner: SlotList | None = None
    """The list that the context begins with, so that what is known of it from earlier steps need not be told again."""
    whole: bool = False
    """Whether each row sees the whole lane, later rows included, and the context need not be that of all positions
    before the rows. For drafters of blocks, in passes of one process."""


@dataclass(slots=True)
class LaneGroup:
    """Lanes of similar size, padded to one shape."""

    keys: torch.Tensor
    """Slots by position, int64 [lanes * blocks * KEY_BLOCK]; padding points at PADDING_SLOT."""
    rows: torch.Tensor
    """Packed row of each query, int64 [lanes * queries]; padding repeats row 0."""
    positions: torch.Tensor
    """Position of the last key that each query sees, int64 [lanes, queries]: its own; 0 for padding."""
    results: torch.Tensor
    """Index of each real query among all lanes * queries, int64 [real]."""
    result_rows: torch.Tensor
    """Packed row of each real query, int64 [real]."""
    lanes: int
    queries: int
    blocks: int
    """Key blocks of KEY_BLOCK positions each."""
    _masks: dict[tuple[int | None, int | None], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def mask(self, window: int | None, chunk: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The attention mask: a query sees its own and earlier positions, with a sliding `window` only the last ones,
        with chunks of `chunk` positions only those of its own.

        Returns two float32 tensors [lanes, blocks, 1, queries, KEY_BLOCK]. The first is 0 where visible and else -inf,
        to be added to scores; the second is 1 where visible and else 0, to multiply weights by.
        """
        pair = self._masks.get((window, chunk))
        if pair is None:
            keys = torch.arange(self.blocks * KEY_BLOCK, device=self.positions.device).view(
                self.blocks, 1, 1, KEY_BLOCK
            )
            queries = self.positions.view(self.lanes, 1, 1, self.queries, 1)
            seen = keys <= queries
            if window is not None:
                seen = seen & (keys > queries - window)
            if chunk is not None:
                seen = seen & (keys >= queries // chunk * chunk)
            hidden = torch.zeros(seen.shape, dtype=torch.float32, device=seen.device)
            pair = hidden.masked_fill_(~seen, float("-inf")), seen.float()
            self._masks[window, chunk] = pair
        return pair


@dataclass
class PackedBatch:
    """The rows of one forward pass: tokens, positions, KV slots and lanes."""

    numbers: np.ndarray
    """Token, absolute position and written KV slot of each row, int64 [3, rows], contiguous."""
    wanted: list[int]
    """Rows whose logits are wanted, in order of the results."""
    lanes: list[Lane]
    group_size: int
    """Query heads per key-value head."""
    device: torch.device
    """The model's device."""
    taps: Sequence[Tap] = ()
    """The reader of hidden states between the layers of this pass; see `model.taps`."""
    features: torch.Tensor | None = None
    """A vector for each row, [rows, width], for models that read one next to the token."""

    def __len__(self) -> int:
        return int(self.numbers.shape[1])

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """Token of each row, int64 [rows], on the model's device."""
        return self._placed[0]

    @cached_property
    def positions(self) -> torch.Tensor:
        """Absolute position of each row, int64 [rows], on the model's device."""
        return self._placed[1]

    @cached_property
    def slots(self) -> torch.Tensor:
        """KV slot that each row writes, int64 [rows], on the model's device."""
        return self._placed[2]

    @cached_property
    def logit_rows(self) -> torch.Tensor:
        """Rows whose logits are wanted, int64 [wanted], on the model's device."""
        return to_device(torch.tensor(self.wanted, dtype=torch.int64), self.device)

    @cached_property
    def _placed(self) -> torch.Tensor:
        return to_device(torch.from_numpy(self.numbers), self.device)

    @cached_property
    def groups(self) -> list[LaneGroup]:
        """The lanes in groups of similar size, for attention by blocks of keys."""
        # Scores are products with queries * group_size rows; from 8 rows up, a product gives a row the same bits
        # whatever the number of rows.
        multiple = 8 // math.gcd(8, self.group_size)
        buckets: dict[tuple[int, int], list[Lane]] = {}
        for lane in self.lanes:
            queries = -(-(len(lane.rows) - lane.first_query) // multiple) * multiple
            blocks = -(-(len(lane.context) + len(lane.rows)) // KEY_BLOCK)
            # Lanes of up to 4 blocks share a group; the lengths of longer ones in a group differ by less than 2x.
            buckets.setdefault((_power_of_two(queries), max(4, _power_of_two(blocks))), []).append(lane)
        _, positions, slots = self.numbers
        return [_group(lanes, multiple, slots, positions, self.device) for lanes in buckets.values()]

    @cached_property
    def slot_lanes(self) -> SlotLanes:
        """The lanes in the form of the compiled attention, which computes row by row."""
        slots = self.numbers[2]
        seen: list[np.ndarray] = []
        rows: list[int] = []
        counts: list[int] = []
        lanes: list[int] = []
        begin = longest = widest = 0
        for lane in self.lanes:
            path, context, first = lane.rows, len(lane.context), len(rows)
            length = context + len(path)
            in_turn = path == list(range(path[0], path[0] + len(path)))
            seen += lane.context, slots[path[0] : path[-1] + 1] if in_turn else slots[path]
            rows += path[lane.first_query :]
            asked = len(rows) - first
            counts += [length] * asked if lane.whole else range(context + lane.first_query + 1, length + 1)
            lanes += begin, first, len(rows)
            begin, longest, widest = begin + length, max(longest, length), max(widest, asked)
        # A single array, as in `build`.
        numbers, count = np.array([*lanes, *rows, *counts], dtype=np.int64), len(rows)
        return SlotLanes(
            np.concatenate(seen) if seen else numbers[:0],
            numbers[: len(lanes)].reshape(-1, 3),
            numbers[len(lanes) : len(lanes) + count],
            numbers[len(lanes) + count :],
            longest,
            widest,
        )


class BatchBuilder:
    """Collects rows and lanes and lays them out as a `PackedBatch`."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._logit_rows: list[int] = []
        self._lanes: list[Lane] = []

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def seen(self) -> int:
        """Total number of positions that the rows see."""
        return sum(self._positions) + len(self._positions)

    def add_row(self, token: int, position: int, slot: int, wants_logits: bool) -> int:
        """Adds a row and returns its index."""
        row = len(self.tokens)
        self.tokens.append(token)
        self._positions.append(position)
        self._slots.append(slot)
        if wants_logits:
            self._logit_rows.append(row)
        return row

    def want(self, row: int) -> None:
        """Requests the logits of a row added before; they come after all requested so far."""
        self._logit_rows.append(row)

    def add_lane(
        self,
        context: np.ndarray,
        rows: list[int],
        first_query: int = 0,
        state: LaneState | None = None,
        owner: SlotList | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Adds a `Lane` over rows added before."""
        self._lanes.append(Lane(context, rows, first_query, state, owner, whole))

    def build(self, group_size: int, device: torch.device) -> PackedBatch:
        """Lays out the batch. group_size: query heads per key-value head of the model; device: the model's."""
        # A single array, since making one costs more than filling it, and a tensor made of lists the most.
        numbers = np.array([self.tokens, self._positions, self._slots], dtype=np.int64)
        return PackedBatch(numbers, self._logit_rows, self._lanes, group_size, device)


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _group(
    lanes: list[Lane], multiple: int, slots: np.ndarray, positions: np.ndarray, device: torch.device
) -> LaneGroup:
    def tensor(array: np.ndarray) -> torch.Tensor:
        return to_device(torch.from_numpy(array), device)

    blocks = max(-(-(len(lane.context) + len(lane.rows)) // KEY_BLOCK) for lane in lanes)
    queries = max(-(-(len(lane.rows) - lane.first_query) // multiple) * multiple for lane in lanes)
    keys = np.full((len(lanes), blocks * KEY_BLOCK), PADDING_SLOT, dtype=np.int64)
    rows = np.zeros((len(lanes), queries), dtype=np.int64)
    query_positions = np.zeros((len(lanes), queries), dtype=np.int64)
    results: list[np.ndarray] = []
    for index, lane in enumerate(lanes):
        path = np.array(lane.rows, dtype=np.int64)
        context = len(lane.context)
        keys[index, :context] = lane.context
        keys[index, context : context + len(path)] = slots[path]
        asked = path[lane.first_query :]
        rows[index, : len(asked)] = asked
        query_positions[index, : len(asked)] = context + len(path) - 1 if lane.whole else positions[asked]
        results.append(np.arange(len(asked)) + index * queries)
    result = np.concatenate(results)
    return LaneGroup(
        keys=tensor(keys.reshape(-1)),
        rows=tensor(rows.reshape(-1)),
        positions=tensor(query_positions),
        results=tensor(result),
        result_rows=tensor(rows.reshape(-1)[result]),
        lanes=len(lanes),
        queries=queries,
        blocks=blocks,
    )
