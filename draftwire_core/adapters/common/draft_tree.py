"""The draft tokens that a host engine verifies for one request in one step, and the best chain for an engine that
verifies chains only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.tree.token_tree import Node, TokenTree


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Draft tokens below a request's last committed token, parents before children."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """For each token, the index of the token that it follows; -1 for the last committed token."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> DraftTree:
        """Makes the tree of some nodes of a token tree, parents before children."""
        places = {id(node): place for place, node in enumerate(nodes)}
        return cls([node.token for node in nodes], [places.get(id(node.parent), -1) for node in nodes])


def best_chain(tree: TokenTree, models: Mapping[str, AcceptanceModel], most: int) -> list[Node]:
    """Returns the chain of at most `most` nodes below the root with the highest expected number of accepted tokens.

    models: calibrations by source; nodes of a source without one are worth nothing.
    """
    # A chain from a node is worth p * (1 + value of the rest), computed from the leaves up. Depths beyond `most` are
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
