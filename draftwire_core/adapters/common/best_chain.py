"""The best chain of a token tree, for a verifier that verifies chains only."""

from __future__ import annotations

from collections.abc import Mapping

from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.tree.token_tree import Node, TokenTree


def best_chain(tree: TokenTree, models: Mapping[str, AcceptanceModel], most: int) -> list[Node]:
    """Returns the chain of at most `most` nodes below the root with the highest expected number of accepted tokens.

    models: calibrations by source; nodes of a source without one are worth nothing.
    """
    # A chain from a node is worth p * (1 + worth of the rest), computed from the leaves up. Depths beyond `most` are
    # ignored.
    limit = tree.root.position + most
    nodes = [node for node in tree.nodes() if node.position <= limit]
    worth: dict[int, float] = {}
    following: dict[int, Node] = {}
    for node in reversed(nodes):
        model = models.get(node.source)
        value = model.probability(node) * (1.0 + worth.get(id(node), 0.0)) if model is not None else 0.0
        parent = id(node.parent)
        if value > worth.get(parent, 0.0):
            worth[parent], following[parent] = value, node
    chain: list[Node] = []
    node = tree.root
    while len(chain) < most and id(node) in following:
        node = following[id(node)]
        chain.append(node)
    return chain
