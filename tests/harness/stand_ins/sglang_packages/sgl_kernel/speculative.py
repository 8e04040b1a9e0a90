"""Tree verification of SGLang, in torch."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Writes position, index, first child and next sibling of each row, as of SGLang's Triton kernel of this name."""
    rows = draft_token_num
    ancestors = tree_mask.view(batch_size, rows, rows).bool() & torch.ones(rows, rows, dtype=torch.bool).tril(-1)
    positions[:] = (ancestors.sum(-1) + verified_seq_len[:, None]).flatten()
    retrive_index[:] = torch.arange(batch_size * rows).view(batch_size, rows)
    retrive_next_token[:] = -1
    retrive_next_sibling[:] = -1
    for request in range(batch_size):
        parents = [int(ancestors[request, row].nonzero().max()) if ancestors[request, row].any() else -1
                   for row in range(rows)]  # fmt: skip
        for row in range(rows):
            children = [other for other in range(row + 1, rows) if parents[other] == row]
            siblings = [other for other in range(row + 1, rows) if parents[other] == parents[row]]
            if children:
                retrive_next_token[request, row] = children[0]
            if siblings and parents[row] >= 0:
                retrive_next_sibling[request, row] = siblings[0]


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walks down each tree as long as a child is the target's token."""
    targets = target_predict.flatten()
    for request in range(len(candidates)):
        last = int(retrive_index[request, 0])
        accept_index[request, 0] = last
        accepted, row = 0, 0
        while accepted + 1 < accept_index.shape[1]:
            row = int(retrive_next_token[request, row])
            while row != -1 and int(candidates[request, row]) != int(targets[last]):
                row = int(retrive_next_sibling[request, row])
            if row == -1:
                break
            predicts[last] = targets[last]
            last = int(retrive_index[request, row])
            accepted += 1
            accept_index[request, accepted] = last
        accept_token_num[request] = accepted
        predicts[last] = targets[last]
