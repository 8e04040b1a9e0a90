"""Coupled sampling: the acceptance rule of every request that does not ask for another one.

Law 1: a request's output is what plain decoding gives for the same seed, whatever the drafters propose.

The target draws the token at position t by the Gumbel-max method, under noise that is a function of the request's seed
s, the position and the token alone (`sampling.coupled_sampler`):

    y_t = argmax_v  z_t(v) / T + g(s, t, v)

A draft token is accepted where it equals y_t. Verification therefore computes the target's logits after every node of
the token tree in one pass, draws y after each node, and follows the drawn tokens down the tree from its root. The
step commits every y on that path. The last one, which leaves the tree, is the bonus token.

The output is exact for two reasons. Each y_t is an exact sample from softmax(z_t / T), since the noise is standard
Gumbel. And y_t is the token that plain decoding draws at that position, since neither the logits of a row nor its noise
depend on what else was in the pass. Drafts decide how many tokens a step commits, never which ones.

A drafter that knows the seed adds the same noise to its own logits. It thereby predicts y_t more often than its most
likely token would. Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative
decoding", arXiv 2408.07978.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwire_core.engine.acceptance.rule import AcceptanceRule, VerifiedTree, Visit
from draftwire_core.engine.tree.token_tree import Node


class CoupledRule(AcceptanceRule):
    """Accepts a draft token where it equals the token that the target drew."""

    def token(self, visit: Visit) -> int:
        """Returns the target's own token."""
        return visit.drawn

    def walk(self, tree: VerifiedTree) -> tuple[list[Node], list[int]]:
        """Follows the drawn tokens from the root, with one comparison per node and no probabilities."""
        if tree.on_path is not None:
            return _read_path(tree, tree.on_path)
        root, nodes, drawn, _, _, _ = tree
        after = {id(node): token for node, token in zip(nodes, drawn[1:], strict=True)}
        node, token = root, drawn[0]
        accepted, tokens = [], [token]
        while (child := node.children.get(token)) is not None and id(child) in after:
            accepted.append(child)
            node, token = child, after[id(child)]
            tokens.append(token)
        return accepted, tokens


def _read_path(tree: VerifiedTree, on_path: list[bool]) -> tuple[list[Node], list[int]]:
    """Returns the accepted nodes and the tokens to commit, given the path that the device found."""
    accepted = [node for node, kept in zip(tree.nodes, on_path[1:], strict=True) if kept]
    accepted.sort(key=lambda node: node.position)
    last = tree.nodes.index(accepted[-1]) + 1 if accepted else 0
    return accepted, [*(node.token for node in accepted), tree.drawn[last]]


def walk_on_device(drawn: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
    """Marks the rows that lie on the path of the drawn tokens, for all sequences of a step at once: bool [rows].

    drawn: the target's token after each row. tokens: each row's own token. parents: the row that each row follows; a
    root is its own parent and always on the path. Each is int64 [rows]; no two siblings have the same token.

    This is the host's walk by pointer doubling: every round doubles the length of the paths checked. The number of
    rounds depends only on the number of rows, so the host never has to query the device between rounds.
    """
    rows = torch.arange(len(parents), device=parents.device)
    found = (tokens == drawn[parents]) | (parents == rows)
    for _ in range(max(0, len(parents) - 1).bit_length()):
        found = found & found[parents]
        parents = parents[parents]
    return found
