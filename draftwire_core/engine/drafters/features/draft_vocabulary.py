"""The vocabulary of a drafter that knows only some of the target's tokens."""

from __future__ import annotations

import torch


def in_target_ids(logits: torch.Tensor, target_ids: torch.Tensor | None, vocabulary: int) -> torch.Tensor:
    """Returns logits by the target's ids, [rows, vocabulary], -inf for tokens that the drafter does not know.

    logits: [rows, draft vocabulary]. target_ids: see `DraftNetwork.target_ids`.
    """
    if target_ids is None:
        return logits
    spread = logits.new_full((len(logits), vocabulary), -torch.inf)
    spread[:, target_ids] = logits
    return spread
