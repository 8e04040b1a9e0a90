"""The target's likeliest tokens at the positions of a text: stored with it, and learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from draftwire import ServedRequest, TokenLogProbs
from draftwire_core.training.data.example import Ids, LogProbs

TOP = 8
"""Tokens of a position that are learned from."""
_ID_BYTES, _LOG_PROB_BYTES = 4, 2


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens:
    """The likeliest tokens of consecutive positions, best first, at temperature 1."""

    token_ids: Ids
    """[positions, top]; 0 where a position has fewer."""
    log_probs: NDArray[np.float16]
    """Natural log-probabilities, [positions, top]; minus infinity where a position has fewer."""

    @classmethod
    def empty(cls, positions: int, top: int) -> Self:
        """Returns room for `top` at each position."""
        return cls(np.zeros((positions, top), np.int32), np.full((positions, top), -np.inf, np.float16))

    @classmethod
    def none(cls, positions: int) -> Self:
        """Returns none for any of the positions."""
        return cls.empty(positions, 0)

    @classmethod
    def served(cls, request: ServedRequest) -> Self:
        """Returns those at the positions of a request's output. The first positions have none if only the last ones
        are reported."""
        positions, top, numbers = len(request.token_ids), request.top, len(request.top_token_ids)
        if not top or numbers > positions * top or numbers % top or numbers != len(request.top_log_probs):
            return cls.none(positions)
        found = cls.empty(positions, top)
        first = positions - numbers // top
        found.token_ids[first:] = np.array(request.top_token_ids, np.int32).reshape(-1, top)
        found.log_probs[first:] = np.array(request.top_log_probs, np.float16).reshape(-1, top)
        return found

    @classmethod
    def reported(cls, positions: Sequence[TokenLogProbs]) -> Self:
        """Returns the likeliest tokens that a request reported with its own tokens."""
        found = cls.empty(len(positions), TOP)
        for place, each in enumerate(positions):
            best = each.top[:TOP]
            found.token_ids[place, : len(best)] = [token.token_id for token in best]
            found.log_probs[place, : len(best)] = [token.logprob for token in best]
        return found

    @classmethod
    def decoded(cls, data: bytes, positions: int, top: int) -> Self:
        """Returns those of `encoded`."""
        if not top:
            return cls.none(positions)
        token_ids = np.frombuffer(data, "<i4", positions * top).astype(np.int32)
        log_probs = np.frombuffer(data, "<f2", offset=token_ids.nbytes).astype(np.float16)
        return cls(token_ids.reshape(positions, top), log_probs.reshape(positions, top))

    def encoded(self) -> bytes:
        """Returns the bytes to store: all ids, then all log-probabilities, `size_of` in all."""
        return self.token_ids.astype("<i4").tobytes() + self.log_probs.astype("<f2").tobytes()

    @staticmethod
    def size_of(positions: int, top: int) -> int:
        """Returns the bytes that so many are stored in."""
        return positions * top * (_ID_BYTES + _LOG_PROB_BYTES)

    @property
    def top(self) -> int:
        """Most tokens of a position; 0 if there are none."""
        return int(self.token_ids.shape[1])

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, which: slice) -> TopTokens:
        """Returns those of a slice of the positions."""
        return TopTokens(self.token_ids[which], self.log_probs[which])

    def targets(self, own: Ids, vocab_size: int) -> tuple[Ids, LogProbs]:
        """Returns the distributions to learn, with probabilities that sum to one: ids and natural log-probabilities,
        [positions, 1 + TOP] each.

        The first token of each position is the text's own. A position without likeliest tokens has all the probability
        there, the others have theirs among these tokens alone. own: the text's tokens [positions]. vocab_size: ids from
        it on are left out.
        """
        token_ids = np.zeros((len(own), 1 + TOP), np.int32)
        log_probs = np.full((len(own), 1 + TOP), -np.inf, np.float32)
        width = 1 + min(TOP, self.top)
        token_ids[:, 0], token_ids[:, 1:width] = own, self.token_ids[:, : width - 1]
        log_probs[:, 1:width] = self.log_probs[:, : width - 1]
        lacking = token_ids >= vocab_size
        lacking[:, 0] = False  # who trains has checked the text's own
        token_ids[lacking], log_probs[lacking] = 0, -np.inf
        log_probs[~np.isfinite(log_probs).any(1), 0] = 0.0
        return token_ids, log_probs - np.logaddexp.reduce(log_probs, axis=1, keepdims=True)
