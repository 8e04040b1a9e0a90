"""One opening of a sequence: its committed tokens, and the tree as the drafter has it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from draftwire.v1 import proposal_pb2

_MOST_TOKENS = 256
"""Most tokens of a distribution."""
_SUM_ERROR = 1e-4
"""Allowed deviation of a distribution's sum from 1."""

Breaches = Iterator[tuple[str, str]]
"""Rules that were broken, each with how."""


@dataclass(eq=False, slots=True)
class _Node:
    """A node of the drafter's tree."""

    token: int
    position: int
    children: dict[int, _Node] = field(default_factory=dict)
    alive: bool = True


@dataclass(eq=False, slots=True)
class Mirror:
    """Replays an opening from the drafter's point of view.

    A proposal says which committed length it was drafted for. The drafter's tree at that length follows from the
    verdicts up to it and from the proposals before, so the mirror needs no clock: it re-roots its tree when a proposal
    shows that the drafter did.
    """

    sequence_id: int
    epoch: int
    tokens: list[int]
    """All committed tokens."""
    credit: int
    max_length: int
    vocab_size: int
    """Token ids from here on do not exist on both sides; 0 if unknown."""
    draws: bool = False
    """Whether the drafter was asked for distributions."""
    opened: bool = False
    """Whether SequenceOpened has come."""
    failed: bool = False
    """Whether a SequenceError has come."""
    closed: bool = False
    """Whether the verifier has closed or replaced it."""
    gone: bool = False
    """Whether the drafter is known, by a pong, to have read that."""
    proposals: int = 0
    known_length: int = 0
    """Committed length that the drafter has shown to know."""
    requested: dict[int, int] = field(default_factory=dict)
    """Smaller credits by the committed length of the verdict that carried them; they hold until the next verdict."""
    lengths: list[int] = field(default_factory=list)
    """Committed lengths that the drafter can know: that of the opening, and those of verdicts."""
    settled: list[int] = field(default_factory=list)
    """Committed lengths of verdicts that the drafter had time to read."""
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _root: _Node = field(default_factory=lambda: _Node(-1, -1))
    _next_id: int = 1
    _drawn: set[int] = field(default_factory=set)
    """Parents whose children have come, of an opening with distributions; 0 only for the present committed length."""

    def __post_init__(self) -> None:
        """Roots the tree at the last token of the opening."""
        self.known_length = len(self.tokens)
        self.lengths.append(self.known_length)
        self._root = _Node(self.tokens[-1], self.known_length - 1)

    def commit(self, tokens: Sequence[int], requested: int | None = None) -> None:
        """Adds the tokens of a verdict, and the smaller credit that it carries."""
        self.tokens.extend(tokens)
        self.lengths.append(len(self.tokens))
        if requested is not None:
            self.requested[len(self.tokens)] = requested

    def settle(self) -> None:
        """Records that the drafter had time to read all that was sent."""
        if self.lengths[-1] not in self.settled:
            self.settled.append(self.lengths[-1])

    def best_path(self) -> list[int]:
        """Returns the tokens of the path of first children that agrees with what is committed, from the last token."""
        node = self._root
        for token in self.tokens[self.known_length :]:
            if token not in node.children:
                return []
            node = node.children[token]
        path = []
        while node.children:
            node = next(iter(node.children.values()))
            path.append(node.token)
        return path

    def take(self, proposal: proposal_pb2.Proposal) -> Breaches:
        """Adds a proposal's nodes, and yields the rules that it breaks."""
        self.proposals += 1
        count = len(proposal.token_ids)
        if count == 0:
            yield "proposal.lists", "a proposal without nodes"
            return
        if len(proposal.parent_ids) != count:
            yield "proposal.lists", f"{len(proposal.parent_ids)} parents for {count} nodes"
            return
        yield from self._check_log_probs(proposal.log_probs, count)
        if proposal.first_node_id != self._next_id:
            yield "proposal.ids", f"first_node_id is {proposal.first_node_id}, expected {self._next_id}"
        yield from self._check_length(proposal.committed_length)
        yield from self._add(proposal)
        yield from self._check_credit(proposal.committed_length)
        yield from self._check_distributions(proposal)

    def _check_log_probs(self, log_probs: Sequence[float], count: int) -> Breaches:
        if len(log_probs) not in (0, count):
            yield "proposal.log_probs", f"{len(log_probs)} log_probs for {count} nodes"
        wrong = [each for each in log_probs if math.isnan(each) or each > 0]
        if wrong:
            yield "proposal.log_probs", f"a log-probability of {wrong[0]}"

    def _check_length(self, length: int) -> Breaches:
        if length > len(self.tokens):
            yield "proposal.length", f"a proposal for {length} committed tokens, where {len(self.tokens)} are"
        elif length < self.known_length:
            yield "proposal.length", f"a proposal for {length} committed tokens after one for {self.known_length}"
        elif length not in self.lengths:
            yield "proposal.length", f"a proposal for {length} committed tokens, a length that no verdict gave"
        else:
            self._advance(length)
        # Two verdicts, because a slow drafter may have taken one in the middle of a step.
        if len(self.settled) > 1 and length < self.settled[-2]:
            yield "verdict.followed", f"still drafts for {length} committed tokens, two verdicts after that"

    def _advance(self, length: int) -> None:
        """Re-roots the tree as the drafter did to know this committed length."""
        for position in range(self.known_length, length):
            kept = self._root.children.get(self.tokens[position])
            self._root.alive = False
            for child in self._root.children.values():
                if child is not kept:
                    _end(child)
            self._root = kept or _Node(self.tokens[position], position)
        if length > self.known_length:
            self._drawn.discard(0)
        self.known_length = length

    def _add(self, proposal: proposal_pb2.Proposal) -> Breaches:
        for index, (token, parent_id) in enumerate(zip(proposal.token_ids, proposal.parent_ids, strict=True)):
            node_id = self._next_id + index
            parent = self._root if parent_id == 0 else self._nodes.get(parent_id)
            if parent is None:
                yield "proposal.parents", f"node {node_id} has the parent {parent_id}, which was not sent before"
                parent = self._root
            elif not parent.alive:
                yield "verdict.tree", f"node {node_id} builds on node {parent_id}, which a verdict had ended"
            if self.vocab_size and token >= self.vocab_size:
                yield "proposal.tokens", f"a token id of {token}, where both sides have {self.vocab_size}"
            node = parent.children.setdefault(token, _Node(token, parent.position + 1, alive=parent.alive))
            if node.position >= self.max_length:
                yield "proposal.max_length", f"a node at position {node.position} of a sequence of {self.max_length}"
            self._nodes[node_id] = node
        self._next_id += len(proposal.token_ids)

    def _check_credit(self, length: int) -> Breaches:
        live = sum(1 for node in self._nodes.values() if node.alive and node is not self._root)
        if live > self.credit:
            yield "credit.live", f"{live} live nodes, with a credit of {self.credit}"
        requested = self.requested.get(length)
        if requested is not None and live > requested:
            yield "credit.smaller", f"{live} live nodes, after a verdict that asked for {requested} at most"

    def _check_distributions(self, proposal: proposal_pb2.Proposal) -> Breaches:
        if not self.draws:
            if proposal.distributions:
                yield "proposal.distributions", "distributions that were not asked for"
            return
        parents = set(proposal.parent_ids)
        named = [each.parent_id for each in proposal.distributions]
        if sorted(named) != sorted(parents):
            yield "draws.reported", f"distributions for the parents {sorted(named)}, nodes for {sorted(parents)}"
        again = parents & self._drawn
        if again:
            yield "draws.reported", f"children of node {min(again)} in two proposals"
        self._drawn |= parents
        for each in proposal.distributions:
            drawn = [t for t, p in zip(proposal.token_ids, proposal.parent_ids, strict=True) if p == each.parent_id]
            fault = _distribution_fault(each, drawn, self.vocab_size)
            if fault:
                yield "draws.reported", f"the distribution of parent {each.parent_id} {fault}"


def _end(node: _Node) -> None:
    """Marks a node and all below it as rolled back."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        found.alive = False
        waiting.extend(found.children.values())


def _distribution_fault(said: proposal_pb2.DraftDistribution, drawn: Sequence[int], vocab_size: int) -> str:
    """Returns what is wrong with a distribution; empty if nothing is."""
    tokens = set(said.token_ids)
    if not 0 < len(said.token_ids) <= _MOST_TOKENS:
        return f"has {len(said.token_ids)} tokens"
    if len(said.probabilities) != len(said.token_ids):
        return f"has {len(said.probabilities)} probabilities for {len(said.token_ids)} tokens"
    if len(tokens) < len(said.token_ids):
        return "names a token twice"
    if vocab_size and max(tokens) >= vocab_size:
        return f"names the token {max(tokens)}"
    if not all(each > 0 for each in said.probabilities):
        return "has a probability that is not above 0"
    if abs(sum(said.probabilities) - 1) > _SUM_ERROR:
        return f"sums to {sum(said.probabilities):.6f}"
    if len(set(drawn)) < len(drawn):
        return "was drawn from with replacement: a token comes twice"
    lacking = set(drawn) - tokens
    return f"lacks the drawn token {min(lacking)}" if lacking else ""
