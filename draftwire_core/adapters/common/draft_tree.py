"""The draft tokens that a host engine verifies for one request in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwire_core.engine.tree.token_tree import Node


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
