"""Scoring: the target's likeliest tokens after each token of a given text, computed next to the running sequences.

Texts to score have the lowest priority. One text at a time uses rows and KV slots that are otherwise idle, and its
slots are reclaimed when a sequence needs them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np
import torch

from draftwire_core.engine.kv.kv_slots import SlotList, SlotPool
from draftwire_core.engine.kv.recurrent_states import LaneState, SequenceState
from draftwire_core.engine.model.features.feature_codec import INT8, encode
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.sampling.log_probs import top_log_probs


@dataclass(frozen=True, slots=True)
class ScoreSpec:
    """A text to score."""

    score_id: int
    tokens: ListLike[int]
    """The text; at least one token."""
    first: int
    """First position to report a distribution for, from 1 (the token after the first one) to len(tokens)."""
    top: int
    """Number of tokens to report per distribution."""
    states: bool = False
    """Whether to report the hidden states that the distributions are computed from, too."""


@dataclass(frozen=True, slots=True)
class Score:
    """One step's scores of a text. Log-probabilities are of the softmax of the unedited logits."""

    score_id: int
    first: int
    """Position of the first distribution in this score."""
    token_ids: list[list[int]]
    """The likeliest tokens at each position, best first."""
    log_probs: list[list[float]]
    """Natural log-probabilities of `token_ids`."""
    done: bool
    """Whether no further score of the text follows."""
    fault: bool = False
    """Whether logits were not finite; scoring of the text then ends, without results of this step."""
    states: bytes = b""
    """The hidden states, if they are asked for, as `feature_codec.encode` writes them in int8."""


class _Text:
    """A text being scored. `slots` holds the KV slots of its computed leading tokens."""

    def __init__(self, spec: ScoreSpec):
        self.spec = spec
        self.slots = SlotList()
        self.state = SequenceState()
        """Of recurrent layers, if the model has any."""
        self.told = spec.first - 1
        """Number of leading tokens after which the distribution has been reported or was not asked for."""

    def give_up(self) -> np.ndarray:
        self.state.release()
        return self.slots.clear()

    @property
    def pending(self) -> int:
        return len(self.spec.tokens) - len(self.slots)


@dataclass(slots=True)
class _Part:
    """The rows of one text in a step."""

    text: _Text
    slots: np.ndarray
    wanted: int
    """Number of rows whose logits are wanted; they are the last ones."""

    @property
    def wants_states(self) -> bool:
        """Whether the hidden states of these rows are asked for."""
        return self.text.spec.states and self.wanted > 0


class Scoring:
    """The texts to be scored, in order of arrival. At most one holds slots between two steps."""

    def __init__(self, pool: SlotPool):
        self._pool = pool
        self._texts: OrderedDict[int, _Text] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def pending(self) -> int:
        """Number of tokens that have not been through the model yet."""
        return sum(text.pending for text in self._texts.values())

    def add(self, spec: ScoreSpec) -> None:
        """Queues a text. Raises ValueError if its id is taken, or if it could never be scored."""
        if spec.score_id in self._texts:
            raise ValueError(f"text {spec.score_id} is already being scored")
        if not 1 <= spec.first <= len(spec.tokens) <= self._pool.capacity:
            raise ValueError(f"text of {len(spec.tokens)} tokens cannot be scored from position {spec.first}")
        self._texts[spec.score_id] = _Text(spec)

    def remove(self, score_id: int) -> None:
        """Ends a text and returns its slots; does nothing if it has ended."""
        text = self._texts.pop(score_id, None)
        if text is not None:
            self._pool.give_back(text.give_up())

    def give_up(self) -> None:
        """Returns all KV slots to the pool. Scores already reported stand; the rest is recomputed."""
        for text in self._texts.values():
            self._pool.give_back(text.give_up())

    def rows(self, room: int, spare: int) -> int:
        """Returns the number of rows to compute in a step with `room` rows and `spare` free slots.

        A text whose remainder exceeds the spare slots waits: once begun, it would have to give its slots up again.
        """
        rows = 0
        for text in self._texts.values():
            if rows >= room or text.pending > spare - rows:
                break
            rows += min(text.pending, room - rows)
        return rows

    def lay_out(self, builder: BatchBuilder, room: int) -> list[_Part]:
        """Takes slots and adds `room` rows, as returned by `rows`, to a batch."""
        parts: list[_Part] = []
        for text in self._texts.values():
            rows = min(text.pending, room)
            if rows < 1:
                break
            room -= rows
            start = len(text.slots)
            slots = self._pool.take(rows)
            chain = [
                builder.add_row(text.spec.tokens[position], position, slot, position >= text.told)
                for position, slot in enumerate(slots.tolist(), start)
            ]
            builder.add_lane(text.slots.array(), chain, 0, LaneState(text.state), owner=text.slots)
            parts.append(_Part(text, slots, max(0, start + rows - max(start, text.told))))
        return parts

    def settle(self, parts: list[_Part], logits: torch.Tensor, states: torch.Tensor | None = None) -> list[Score]:
        """Returns the scores from the rows of `parts`.

        logits: of the wanted rows, in order. states: the same rows of the output head's inputs, [rows, hidden], if a
        text asks for them.
        """
        scores: list[Score] = []
        begin = 0
        for part in parts:
            text, spec = part.text, part.text.spec
            text.slots.extend(part.slots)
            wanted = slice(begin, begin + part.wanted)
            rows = logits[wanted]
            begin += part.wanted
            done = text.pending == 0
            if part.wanted:
                first, text.told = text.told + 1, len(text.slots)
                token_ids, log_probs = top_log_probs(rows, spec.top)
                fault = not bool(log_probs.isfinite().all())
                if fault:
                    scores.append(Score(spec.score_id, first, [], [], True, fault=True))
                else:
                    seen = encode(states[wanted].cpu(), INT8) if spec.states and states is not None else b""
                    found = token_ids.tolist(), log_probs.tolist()
                    scores.append(Score(spec.score_id, first, *found, done, states=seen))
                done = done or fault
            if done:
                self.remove(spec.score_id)
        return scores
