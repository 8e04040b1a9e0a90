"""What one forward pass of the target came to."""

from __future__ import annotations

from typing import NamedTuple

import torch

from speculative_engine.engine.scoring import Score
from speculative_engine.sampling.log_probs import LogProbs


class AskedRows(NamedTuple):
    """What the target said after rows that were asked, in their order."""

    drawn: list[int]
    """Its own tokens."""
    on_path: list[bool] | None
    """Whether each row is on the path that they lead along; None where that has to be walked."""
    logits: torch.Tensor
    """What they were drawn from, [rows, V]: with the requests' own changes. Further rows may follow."""
    raw: torch.Tensor
    """The target's own, [rows, V] and further ones; the same tensor where no request changes them."""
    states: torch.Tensor | None
    """The hidden state that each token was drawn from, if somebody drafts from them: [rows, hidden]."""


class ComputedStep(NamedTuple):
    """A forward pass."""

    asked: AskedRows
    scores: list[Score]
    prompts: dict[int, LogProbs]
    """What it tells of prompts, by sequence."""
    rows: int
    seen: int
    """Positions that its rows have seen, all together."""

    def of(self, rows: slice) -> AskedRows:
        """Some of what was asked."""
        drawn, path, logits, raw, states = self.asked
        return AskedRows(
            drawn[rows],
            None if path is None else path[rows],
            logits[rows],
            raw[rows],
            None if states is None else states[rows],
        )
