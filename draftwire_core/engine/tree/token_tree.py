"""The token tree of one sequence: the drafters' guesses of what follows its last committed token.

Verifier and drafter hold mirrored trees. Both prune them by the same rule (`TokenTree.commit`), so trees are never
sent: proposals add nodes, verdicts name the tokens to walk along.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

MOST_TOKENS = 256
"""Most tokens in one distribution."""


@dataclass(frozen=True, slots=True)
class DraftDistribution:
    """Distinct tokens and their probabilities, which are above 0 and sum to 1 up to rounding."""

    token_ids: Sequence[int]
    probabilities: Sequence[float]

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens [n] int64 and their probabilities [n] float64, as copies for the caller."""
        return np.array(self.token_ids, dtype=np.int64), np.array(self.probabilities, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Draws:
    """A node's children that were drawn without replacement, with their distribution."""

    tokens: tuple[int, ...]
    """The drawn tokens, in the order they were drawn."""
    distribution: DraftDistribution


class NodeState(enum.Enum):
    """The state of a drafted token: still in the tree, committed, or pruned."""

    LIVE = "live"
    COMMITTED = "committed"
    PRUNED = "pruned"


class Node:
    """One drafted token.

    `position` is the absolute index of the token in prompt + output. `children` maps a token id to the child node that
    drafts it. `log_prob` is the drafter's natural-log probability of the token given its parent. `rank` is the node's
    index among its siblings in drafting order. `source` is the drafter that drafted it first.
    """

    __slots__ = (
        "allowed",
        "children",
        "draws",
        "id",
        "log_prob",
        "parent",
        "position",
        "rank",
        "slot",
        "source",
        "state",
        "token",
    )

    def __init__(self, token: int, parent: Node | None, position: int, log_prob: float, source: str, rank: int):
        self.token = token
        self.parent = parent
        self.position = position
        self.log_prob = log_prob
        self.source = source
        self.rank = rank
        self.children: dict[int, Node] = {}
        self.draws: Draws | None = None
        """The children that were drawn, and their distribution; only for the rejection rule."""
        self.allowed: bool | None = None
        """Whether the output's form permits this node; None if not yet checked or if there is no form."""
        self.state = NodeState.LIVE
        self.id = 0
        """The drafter's id of the node on the wire; unused by the verifier, which may merge several drafters."""
        self.slot = -1
        """KV slot that holds this token's keys and values, -1 until the token has been through the model."""

    def __repr__(self) -> str:
        return f"Node(token={self.token}, position={self.position}, children={list(self.children)})"

    def subtree(self) -> Iterator[Node]:
        """Yields all nodes below this one, parents before their children, without the node itself."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def path_from(self, root: Node) -> list[Node]:
        """Returns the nodes from just below `root` down to this one, in order."""
        path: list[Node] = []
        node: Node | None = self
        while node is not root:
            if node is None:
                raise ValueError("node is not below the given root")
            path.append(node)
            node = node.parent
        path.reverse()
        return path


class TokenTree:
    """The drafted continuations of one sequence, rooted at its last committed token."""

    def __init__(self, committed_length: int, root_token: int):
        if committed_length < 1:
            raise ValueError("a tree needs a committed token to grow from")
        self.root = self._fresh_root(root_token, committed_length - 1)
        self.size = 0
        """Number of live nodes, without the root."""

    @property
    def committed_length(self) -> int:
        """Number of committed tokens, prompt included."""
        return self.root.position + 1

    def add(self, parent: Node, token: int, log_prob: float = 0.0, source: str = "") -> tuple[Node, bool]:
        """Returns the node that drafts `token` after `parent`, and whether it is new."""
        node = parent.children.get(token)
        if node is not None:
            return node, False
        node = Node(token, parent, parent.position + 1, log_prob, source, len(parent.children))
        parent.children[token] = node
        self.size += 1
        return node, True

    def walk(self, tokens: Sequence[int]) -> list[Node]:
        """Returns the nodes that `tokens` pass through from the root, up to the first token that leaves the tree."""
        node, path = self.root, []
        for token in tokens:
            child = node.children.get(token)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def commit(self, tokens: Sequence[int]) -> tuple[list[Node], list[Node]]:
        """Commits `tokens` and re-roots the tree at the last of them.

        Returns the walked nodes, now committed, and the pruned ones. If the last token is a node, it becomes the root
        and its subtree survives; otherwise a fresh tree starts there. Nodes that leave the tree have no parent any
        more, so that they are freed at once instead of by the garbage collector.
        """
        if not tokens:
            raise ValueError("a commit needs at least one token")
        if not self.size:
            self.root = self._fresh_root(tokens[-1], self.root.position + len(tokens))
            return [], []
        walked = self.walk(tokens)
        survivor = walked[-1] if len(walked) == len(tokens) else None
        for node in walked:
            node.state, node.parent = NodeState.COMMITTED, None
        live, gone = NodeState.LIVE, NodeState.PRUNED
        pruned: list[Node] = []
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            if node.state is live:
                node.state, node.parent = gone, None
                pruned.append(node)
            if node is not survivor:
                stack.extend(node.children.values())
        if survivor is None:
            self.root = self._fresh_root(tokens[-1], self.root.position + len(tokens))
            self.size = 0
        else:
            self.root = survivor
            self.size -= len(walked) + len(pruned)
        return walked, pruned

    @staticmethod
    def _fresh_root(token: int, position: int) -> Node:
        root = Node(token, None, position, 0.0, "", 0)
        root.state = NodeState.COMMITTED
        return root

    def nodes(self) -> Iterator[Node]:
        """Yields all live nodes, parents before children, without the root."""
        return self.root.subtree()
