r"""The window of Jacobi trajectories: guesses for the places after a sequence, made better by every pass.

Fu, Bailis, Stoica, Zhang, "Break the sequential dependency of LLM inference using lookahead decoding",
arXiv 2402.02057. A column holds tokens for as many places in a row. Its first token stands in a line with the first
tokens of the columns before it, which is what it sees of them; its others follow it alone:

    last committed token - a1 - b1 - c1       columns a, b, c; the probes below the committed token are a tree
                            \    \    \
                             a2   b2   c2     each pass tells what comes after a2, b2, c2
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from speculative_engine.drafters.probing import Probes
from speculative_engine.tree.token_tree import Node


class JacobiWindow:
    """One sequence's columns: the first stands at the place after the last committed token, the next one further on."""

    def __init__(self, levels: int):
        """levels: tokens in a column, at least one."""
        self._levels = levels
        self._columns: list[list[int]] = []
        self._start = 0
        """Position of the first column."""
        # Which text a new column begins as decides no token, so one seed is as good as another.
        self._random = random.Random(0)

    def probes(self, root: Node, text: Sequence[int], count: int) -> Probes:
        """The probes of the next pass: `count` columns below the last token of `text`.

        Columns whose place has been committed are dropped. New ones begin as a piece of the text.
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
        """Take in the tokens that came after each column; the n-grams that they make.

        tokens: -1 where the target had none to tell; that column begins anew.
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
    """A node that its parent does not know: no walk comes there."""
    return Node(token, parent, parent.position + 1, 0.0, "", 0)
