"""Penalties for tokens that already occur in the text.

    z  <-  z / r  where z > 0, else z * r                          tokens of prompt and output (repetition, r)
    z  <-  z - (presence + frequency * times in the output)        tokens of the output

The first is Keskar et al.'s, arXiv 1909.05858; the others are those of OpenAI's API. All operations are element-wise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import to_device_together
from draftwire_core.engine.logits.logit_changes import LogitChanges
from draftwire_core.engine.logits.logit_editor import TreeRows

_LARGEST = 1e30
"""Largest absolute value of a penalised logit, which stays finite when divided by any temperature."""


class Penalties:
    """Applies repetition, presence and frequency penalties; a row's text is the committed one plus the row's path."""

    def __init__(self, changes: LogitChanges, prompt: Iterable[int], output: Sequence[int]):
        """output: tokens committed so far."""
        self._repetition = min(max(changes.repetition_penalty, 1 / _LARGEST), _LARGEST)
        self._presence, self._frequency = changes.presence_penalty, changes.frequency_penalty
        seen = dict.fromkeys(prompt if self._repetition != 1 else ())
        self._places = {token: place for place, token in enumerate(seen)}
        """Index of each token of the committed text in the following arrays."""
        self._ids = np.fromiter(self._places, dtype=np.int64, count=len(self._places))
        self._counts = np.zeros(len(self._places), dtype=np.int64)
        """Occurrences of each token in the output."""
        self._amounts = np.zeros(len(self._places), dtype=np.float32)
        """Presence and frequency penalty of each token."""
        self._path_places = np.empty((2, 0), dtype=np.int64)
        """Rows, and tokens on these rows' paths, whose penalty differs from that of the committed text."""
        self._path_amounts = np.empty(0, dtype=np.float32)
        self.commit(output)

    def prepare(self, rows: TreeRows) -> None:
        """Computes the penalties of tokens on the rows' paths."""
        places: list[tuple[int, int]] = []
        amounts: list[float] = []
        for row in range(1, len(rows)):
            path = rows.path(row)
            for token in set(path):
                place = self._places.get(token)
                committed = 0 if place is None else int(self._counts[place])
                places.append((row, token))
                amounts.append(self._amount(committed + path.count(token)))
        self._path_places = np.array(places, dtype=np.int64).reshape(-1, 2).T
        self._path_amounts = np.array(amounts, dtype=np.float32)

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Applies the penalties to all rows."""
        device, count = logits.device, len(self._places)
        committed = [torch.from_numpy(each[:count]) for each in (self._ids, self._amounts)]
        on_path = [torch.from_numpy(each) for each in (self._path_places, self._path_amounts)]
        ids, amounts, places, path_amounts = to_device_together([*committed, *on_path], device)
        penalized = self._penalized(logits.index_select(1, ids), amounts)
        if len(rows) == 1:
            logits.index_copy_(1, ids, penalized)
            return
        row, token = places
        # Read before the first change, since a token may be both in the committed text and on a row's path.
        on_paths = self._penalized(logits[row, token], path_amounts)
        logits.index_copy_(1, ids, penalized)
        logits[row, token] = on_paths

    def commit(self, tokens: Sequence[int]) -> None:
        """Counts the committed tokens."""
        for token in tokens:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._make_room()
            self._ids[place] = token
            self._counts[place] += 1
            self._amounts[place] = self._amount(int(self._counts[place]))

    def _amount(self, count: int) -> float:
        return self._presence + self._frequency * count

    def _penalized(self, logits: Tensor, amounts: Tensor) -> Tensor:
        """Returns logits [..., n] with the penalties of n tokens applied."""
        changed = logits
        if self._repetition != 1:
            changed = torch.where(logits > 0, logits / self._repetition, logits * self._repetition)
        changed = (changed - amounts).clamp_(-_LARGEST, _LARGEST)
        return torch.where(logits.isfinite(), changed, logits)  # NaN and infinities stay

    def _make_room(self) -> None:
        room = len(self._ids) + 64
        self._ids = np.concatenate([self._ids, np.zeros(room, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, dtype=np.int64)])
        self._amounts = np.concatenate([self._amounts, np.zeros(room, dtype=np.float32)])
