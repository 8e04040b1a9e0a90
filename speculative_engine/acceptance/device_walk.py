"""Which verified nodes are on the target's path, found on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def on_path(drawn: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
    """Whether each row of a step is on the path from its sequence's root that the drawn tokens lead along; bool [rows].

    drawn: the target's token after each row. tokens: each row's own. parents: the row that each follows, itself for
    roots, which all are on it. int64 [rows] each; of siblings no two have the same token.

    Every round knows of paths twice as long, so the number of rounds is that of the rows alone.
    """
    rows = torch.arange(len(parents), device=parents.device)
    found = (tokens == drawn[parents]) | (parents == rows)
    for _ in range(max(0, len(parents) - 1).bit_length()):
        found = found & found[parents]
        parents = parents[parents]
    return found
