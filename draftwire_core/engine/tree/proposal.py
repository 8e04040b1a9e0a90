"""A drafter's proposal, and the reader that merges proposals into the verifier's copy of the token tree."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from itertools import repeat
from operator import lt
from typing import NamedTuple

from draftwire_core.engine.tree.token_tree import MOST_TOKENS, DraftDistribution, Draws, Node, NodeState, TokenTree


class Proposal(NamedTuple):
    """New nodes of one sequence's tree. Node i has id `first_node_id + i`; ids start at 1 and are never reused.

    `parent_ids` name nodes sent before, or 0 for the last of the `committed_length` tokens that the drafter knew.
    `log_probs` are the drafter's natural-log probabilities of each node given its parent, one per node or none.
    `distributions` give, by parent id, the distribution from which a parent's nodes were drawn, in their order here;
    only for the rejection rule. `last`: no more nodes follow before the next verdict. `gathered`: the drafter
    held the nodes back, so their arrival does not show its pace.
    """

    committed_length: int
    first_node_id: int
    token_ids: Sequence[int]
    parent_ids: Sequence[int]
    log_probs: Sequence[float] = ()
    distributions: Sequence[tuple[int, DraftDistribution]] = ()
    last: bool = False
    gathered: bool = False

    @classmethod
    def of(cls, tree: TokenTree, nodes: Sequence[Node], *, last: bool = False) -> Proposal:
        """Returns the proposal that adds numbered nodes, at least one, to a drafter's tree."""
        root = tree.root
        return cls(
            committed_length=tree.committed_length,
            first_node_id=nodes[0].id,
            token_ids=[node.token for node in nodes],
            parent_ids=[0 if node.parent is root or node.parent is None else node.parent.id for node in nodes],
            log_probs=[node.log_prob for node in nodes],
            distributions=[
                (0 if parent is root else parent.id, parent.draws.distribution)
                for parent in {id(node.parent): node.parent for node in nodes if node.parent is not None}.values()
                if parent.draws is not None
            ],
            last=last,
        )


class ProposalFault(enum.Enum):
    """The reason why a proposal was rejected."""

    MALFORMED = "malformed"
    CREDIT_EXCEEDED = "credit exceeded"


class ProposalError(Exception):
    """A proposal that no correct drafter sends. The sequence continues without that drafter."""

    def __init__(self, fault: ProposalFault, field: str, description: str):
        super().__init__(f"{field}: {description}")
        self.fault = fault
        self.field = field
        self.description = description


class MergeCount(NamedTuple):
    """The result of merging a proposal."""

    added: int
    """Number of nodes new in the tree."""
    stale: int
    """Number of nodes already ruled out by a verdict."""
    foreseen: bool = False
    """Whether one of the nodes is the last committed token, drafted before the drafter knew it."""


_UNKNOWN_LOG_PROB = -0.5
"""Log-probability assumed for drafters that send none; calibration does the rest."""
_SUM_ERROR = 1e-4
"""Allowed deviation of a distribution's sum from 1; float32 on the wire rounds to about 1e-7."""


class ProposalReader:
    """Merges one drafter's proposals into one sequence's tree.

    Proposals and verdicts cross on the wire, so a proposal may build on an outdated committed length. Its nodes are
    followed along the tokens committed since then: nodes that agree with them lead into the tree, the others are stale.
    Node ids are forgotten once the drafter has shown that it knows a later committed length.

    The credit bounds the number of nodes in the tree. It also bounds the nodes that turned out to be committed beyond
    the length the drafter knows, since the drafter still considers both live. The reader therefore keeps at most a few
    times as many ids as the credit, and scans them at most twice per verdict, however many proposals follow it.

    Under the rejection rule a parent keeps the draws of the first drafter that drew there. Two drafters draw with the
    same random numbers, so their draws are not independent and count as one. Another drafter's nodes there count only
    if they are in the tree anyway.
    """

    def __init__(self, source: str, max_tree_nodes: int, vocab_size: int, *, draws: bool = False):
        """draws: whether the drafter must report the distributions its nodes were drawn from."""
        self.source = source
        self._draws = draws
        self._max_tree_nodes = max_tree_nodes
        self._vocab_size = vocab_size
        self._next_id = 1
        self._known_length = 0
        # A live node of the tree, or the position of the committed token that the node turned out to be.
        self._known: dict[int, Node | int] = {}
        self._live = 0
        """Number of entries of `_known` that are nodes of the tree."""
        self._ahead = 0
        """Number of entries of `_known` committed beyond the length that the drafter knows."""
        self._seen_length = 0
        """Committed length of the tree when `_known` was last scanned."""

    def merge(self, proposal: Proposal, tree: TokenTree, tokens: Sequence[int]) -> MergeCount:
        """Adds the proposal's nodes to `tree`.

        tokens: all committed tokens of the sequence, prompt included.
        Raises ProposalError, and leaves the tree unchanged, if the proposal contradicts itself or exceeds the credit.
        """
        self._check(proposal, tree)
        if proposal.committed_length > self._known_length or tree.committed_length > self._seen_length:
            self._known_length = proposal.committed_length
            self._seen_length = tree.committed_length
            self._forget()
        self._check_credit(len(proposal.token_ids))
        root, before = tree.root, tree.size
        base = proposal.committed_length - 1
        log_probs = proposal.log_probs or repeat(_UNKNOWN_LOG_PROB, len(proposal.token_ids))
        distributions = dict(proposal.distributions)
        drawn = _by_parent(proposal) if distributions else {}
        entered: set[int] = set()
        stale = 0
        foreseen = False
        self._next_id += len(proposal.token_ids)
        node_ids = range(proposal.first_node_id, self._next_id)
        for node_id, token, parent_id, log_prob in zip(
            node_ids, proposal.token_ids, proposal.parent_ids, log_probs, strict=True
        ):
            parent = self._resolve(parent_id) if parent_id else base
            if isinstance(parent, int) and parent == root.position:
                parent = root
            if isinstance(parent, Node):
                if parent_id in distributions and parent.draws is None:
                    parent.draws = Draws(tuple(drawn[parent_id]), distributions[parent_id])
                    entered.add(parent_id)
                if parent_id in distributions and parent_id not in entered:
                    node = parent.children.get(token)
                else:
                    node, _ = tree.add(parent, token, log_prob, self.source)
                if node is None:
                    stale += 1
                else:
                    self._known[node_id] = node
                    self._live += 1
            elif parent is not None and tokens[parent + 1] == token:
                self._known[node_id] = parent + 1
                self._ahead += parent + 1 >= self._known_length
                foreseen |= parent + 1 == root.position
            else:
                stale += 1
        return MergeCount(tree.size - before, stale, foreseen)

    def _resolve(self, node_id: int) -> Node | int | None:
        """Returns the node if it is in the tree, its position if it was committed, None if it was pruned."""
        known = self._known.get(node_id)
        if not isinstance(known, Node) or known.state is NodeState.LIVE:
            return known
        return known.position if known.state is NodeState.COMMITTED else None

    def _forget(self) -> None:
        """Drops pruned nodes and tokens committed before the drafter's root: the drafter references neither again."""
        kept: dict[int, Node | int] = {}
        self._live = self._ahead = 0
        for node_id, known in self._known.items():
            if isinstance(known, Node):
                if known.state is NodeState.LIVE:
                    kept[node_id] = known
                    self._live += 1
                    continue
                if known.state is NodeState.PRUNED:
                    continue
                known = known.position
            if known >= self._known_length - 1:
                kept[node_id] = known
                self._ahead += known >= self._known_length
        self._known = kept

    def _check(self, proposal: Proposal, tree: TokenTree) -> None:
        count = len(proposal.token_ids)
        if count == 0:
            raise _malformed("token_ids", "is empty")
        if len(proposal.parent_ids) != count:
            raise _malformed("parent_ids", f"has {len(proposal.parent_ids)} entries for {count} nodes")
        if len(proposal.log_probs) not in (0, count):
            raise _malformed("log_probs", f"has {len(proposal.log_probs)} entries for {count} nodes")
        if proposal.first_node_id != self._next_id:
            raise _malformed("first_node_id", f"is {proposal.first_node_id}, expected {self._next_id}")
        known = max(1, self._known_length)
        if not known <= proposal.committed_length <= tree.committed_length:
            raise _malformed(
                "committed_length", f"is {proposal.committed_length}, expected {known} to {tree.committed_length}"
            )
        first = proposal.first_node_id
        # Looks for a fault in what has none in a fraction of the time that naming it takes.
        if (
            min(proposal.token_ids) < 0
            or max(proposal.token_ids) >= self._vocab_size
            or min(proposal.parent_ids) < 0
            or not all(map(lt, proposal.parent_ids, range(first, first + count)))
        ):
            raise self._bad_node(proposal)
        if proposal.log_probs and (max(proposal.log_probs) > 0 or math.isnan(sum(proposal.log_probs))):
            raise _bad_log_prob(proposal.log_probs)
        self._check_distributions(proposal)

    def _bad_node(self, proposal: Proposal) -> ProposalError:
        """The error for the first node with a token or a parent that cannot be; there is one."""
        for offset, (token, parent_id) in enumerate(zip(proposal.token_ids, proposal.parent_ids, strict=True)):
            if not 0 <= token < self._vocab_size:
                break
            if not 0 <= parent_id < proposal.first_node_id + offset:
                return _malformed(f"parent_ids[{offset}]", f"is {parent_id}, but no such node was sent before")
        return _malformed(f"token_ids[{offset}]", f"is {token}, but the vocabulary has {self._vocab_size} tokens")

    def _check_credit(self, count: int) -> None:
        for known, what in ((self._live, "live nodes"), (self._ahead, "nodes of committed tokens")):
            if known + count > self._max_tree_nodes:
                raise ProposalError(
                    ProposalFault.CREDIT_EXCEEDED,
                    "token_ids",
                    f"would make {known + count} {what}, but the credit is {self._max_tree_nodes}",
                )

    def _check_distributions(self, proposal: Proposal) -> None:
        if not self._draws:
            if proposal.distributions:
                raise _malformed("distributions", "were not requested")
            return
        children = _by_parent(proposal)
        for index, (parent_id, distribution) in enumerate(proposal.distributions):
            where = f"distributions[{index}]"
            drawn = children.pop(parent_id, None)
            if drawn is None:
                raise _malformed(
                    f"{where}.parent_id", f"is {parent_id}, which has no nodes here, or has another distribution"
                )
            check_distribution(where, distribution, self._vocab_size)
            if len(set(drawn)) < len(drawn):
                raise _malformed("token_ids", f"repeats a token below node {parent_id}")
            if not set(drawn) <= set(distribution.token_ids):
                raise _malformed(f"{where}.token_ids", f"lacks a token that was drawn below node {parent_id}")
        if children:
            raise _malformed("distributions", f"has none for node {min(children)}")


def _bad_log_prob(log_probs: Sequence[float]) -> ProposalError:
    """The error for the first number that is not the logarithm of a probability; there is one."""
    offset, log_prob = next(each for each in enumerate(log_probs) if not each[1] <= 0)
    return _malformed(f"log_probs[{offset}]", f"is {log_prob}, not the logarithm of a probability")


def _by_parent(proposal: Proposal) -> dict[int, list[int]]:
    """The tokens of a proposal by the id of their parent, in their order."""
    children: dict[int, list[int]] = {}
    for token, parent_id in zip(proposal.token_ids, proposal.parent_ids, strict=True):
        children.setdefault(parent_id, []).append(token)
    return children


def check_distribution(where: str, distribution: DraftDistribution, vocab_size: int) -> None:
    """Raises ProposalError, with the name of the field below `where`, for what is no distribution over tokens."""
    token_ids, probabilities = distribution.token_ids, distribution.probabilities
    if not 1 <= len(token_ids) <= MOST_TOKENS:
        raise _malformed(f"{where}.token_ids", f"has {len(token_ids)} tokens, 1 to {MOST_TOKENS} are allowed")
    if len(probabilities) != len(token_ids):
        raise _malformed(f"{where}.probabilities", f"has {len(probabilities)} entries for {len(token_ids)} tokens")
    if len(set(token_ids)) < len(token_ids):
        raise _malformed(f"{where}.token_ids", "repeats a token")
    for offset, token in enumerate(token_ids):
        if not 0 <= token < vocab_size:
            raise _malformed(f"{where}.token_ids[{offset}]", f"is {token}, but the vocabulary has {vocab_size} tokens")
    for offset, probability in enumerate(probabilities):
        if not 0 < probability <= 1 + _SUM_ERROR:  # NaN, too
            raise _malformed(f"{where}.probabilities[{offset}]", f"is {probability}, not a probability above 0")
    total = math.fsum(probabilities)
    if abs(total - 1) > _SUM_ERROR:
        raise _malformed(f"{where}.probabilities", f"sum to {total:.6g}, not 1")


def _malformed(field: str, description: str) -> ProposalError:
    return ProposalError(ProposalFault.MALFORMED, field, description)
