r"""The window of Jacobi trajectories: guesses for the positions after a sequence, refined by every pass.

Fu, Bailis, Stoica, Zhang, "Break the sequential dependency of LLM inference using lookahead decoding",
arXiv 2402.02057. A column holds tokens for consecutive positions. Its first token follows the first tokens of the
columns before it and sees none of their other tokens. Its other tokens follow its first:

    last committed token - a1 - b1 - c1       columns a, b, c; the probes below the committed token are a tree
                            \    \    \
                             a2   b2   c2     each pass yields the tokens after a2, b2, c2
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from draftwire_core.engine.drafters.probing import Probes
from draftwire_core.engine.tree.token_tree import Node


class JacobiWindow:
    """One sequence's columns, which begin at consecutive positions after the last committed token."""

    def __init__(self, levels: int):
        """levels: tokens per column, at least one."""
        self._levels = levels
        self._columns: list[list[int]] = []
        self._start = 0
        """Position of the first column."""
        # The initial tokens of a column never affect the output, so any seed will do.
        self._random = random.Random(0)

    def probes(self, root: Node, text: Sequence[int], count: int) -> Probes:
        """Returns the probes of the next pass: `count` columns below `root`.

        Columns whose position has been committed are dropped. New ones are initialized with a random piece of `text`.
        """
        start = root.position + 1
        del self._columns[: max(0, start - self._start)], self._columns[count:]
        self._start = start
        while len(self._columns) < count:
            self._columns.append(self._piece(text))
        nodes: list[Node] = []
        asked: list[Node] = []
        head = root
        for column in self._columns:
            node = head = _below(head, column[0])
            nodes.append(node)
            for token in column[1:]:
                node = _below(node, token)
                nodes.append(node)
            asked.append(node)
        return Probes(nodes, asked)

    def learn(self, text: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
        """Moves each column on by the target's token after it. Returns the n-grams that columns and tokens form.

        tokens: the target's token after each column; -1 for none, which initializes the column again.
        """
        ngrams: list[list[int]] = []
        for index, (column, token) in enumerate(zip(self._columns, tokens, strict=True)):
            if token < 0:
                self._columns[index] = self._piece(text)
                continue
            ngrams.append([*column, token])
            self._columns[index] = [*column[1:], token]
        self._start += 1
        return ngrams

    def _piece(self, text: Sequence[int]) -> list[int]:
        first = self._random.randrange(max(1, len(text) - self._levels + 1))
        piece = list(text[first : first + self._levels])
        return piece + piece[-1:] * (self._levels - len(piece))


def _below(parent: Node, token: int) -> Node:
    """Returns a node that is not among its parent's children, so no walk reaches it."""
    return Node(token, parent, parent.position + 1, 0.0, "", 0)
