"""The verifier's side of a drafter without a model: reads its proposals and commits a test's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.drafters.drafter import Drafter, DraftSpec
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree

VOCABULARY = 1000


class DrafterReader:
    """One sequence of a drafter and the verifier's mirror of its tree. A proposal that contradicts itself, the credit
    or the committed tokens fails the test."""

    def __init__(
        self,
        drafter: Drafter,
        tokens: Sequence[int],
        *,
        key: int = 1,
        max_tree_nodes: int = 16,
        max_length: int = 10_000,
        vocab_size: int = VOCABULARY,
        sampling: SamplingParams | None = None,
        private: bool = False,
    ) -> None:
        self.drafter = drafter
        self.key = key
        self.max_tree_nodes = max_tree_nodes
        self.tokens = list(tokens)
        self.tree = TokenTree(len(self.tokens), self.tokens[-1])
        self._reader = ProposalReader("drafter", max_tree_nodes, vocab_size)
        sampling = sampling or SamplingParams()
        spec = DraftSpec(self.tokens, sampling, max_tree_nodes, max_length, vocab_size, private=private)
        drafter.open(key, spec)

    def grow(self) -> None:
        """Calls the drafter until it has nothing left to draft."""
        while self.drafter.busy:
            self.take(self.drafter.grow().proposals)

    def take(self, proposals: dict) -> None:
        """Merges a proposal for this sequence, if there is one."""
        if self.key in proposals:
            proposal = proposals[self.key]
            assert proposal.committed_length == len(self.tokens), "nothing is stale within one thread"
            count = self._reader.merge(proposal, self.tree, self.tokens)
            assert count.added == len(proposal.token_ids)
        assert self.tree.size <= self.max_tree_nodes

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Commits tokens; returns those that had been drafted."""
        walked, _ = self.tree.commit(tokens)
        self.tokens += tokens
        self.drafter.commit(self.key, len(self.tokens), tokens)
        self.grow()
        return [node.token for node in walked]

    def likeliest(self) -> list[int]:
        """Returns the tokens of the most likely path."""
        path, node = [], self.tree.root
        while node.children:
            node = max(node.children.values(), key=lambda child: child.log_prob)
            path.append(node.token)
        return path

    def follow(self, tokens: Sequence[int]) -> int:
        """Commits tokens like a verifier that verifies the whole tree; returns the number of steps."""
        rest, steps = list(tokens), 0
        while rest:
            count = min(len(self.tree.walk(rest)) + 1, len(rest))
            self.commit(rest[:count])
            rest = rest[count:]
            steps += 1
        return steps
