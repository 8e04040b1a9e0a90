"""What one sequence has computed in one step, and how its verified nodes turn into committed tokens."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from speculative_engine.acceptance.rule import Rule, Visit
from speculative_engine.drafters.probing import NO_PROBES
from speculative_engine.engine.sequence import Sequence
from speculative_engine.engine.step_result import RejectedDraft
from speculative_engine.kv.kv_slots import SlotPool
from speculative_engine.logits.logit_editor import TreeRows
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.sampling.distributions import probabilities
from speculative_engine.sampling.log_probs import LogProbs, log_probs
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.tree.token_tree import Node


class VerificationJob:
    """One sequence's rows in a step: a part of its pending tokens, then the nodes to verify, then probes."""

    def __init__(self, sequence: Sequence, chain_length: int, nodes: list[Node]):
        self.sequence = sequence
        self.nodes = nodes
        self.probes = NO_PROBES
        """Computed beside the nodes, with slots for this step alone; only where the chain ends the pending tokens."""
        self.prober: str | None = None
        """The drafter whose probes they are."""
        self._chain_length = chain_length
        self._finishes_chain = chain_length == sequence.pending
        self.slots = np.empty(0, dtype=np.int64)
        self.chain_rows: list[int] = []
        """Rows of the batch that hold the pending tokens."""
        self.sampled_positions: list[int] = []
        """Position of each token to draw: after the chain, then after each node, then after each asked probe."""

    @property
    def rows(self) -> int:
        """Rows of the step that are this sequence's."""
        return self._chain_length + len(self.nodes) + len(self.probes.nodes)

    @property
    def chain(self) -> np.ndarray:
        """Slots of the pending tokens, int64."""
        return self.slots[: self._chain_length]

    def lay_out(self, builder: BatchBuilder, pool: SlotPool) -> None:
        """Take slots and add this sequence's rows and lanes to a batch."""
        sequence = self.sequence
        start = len(sequence.slots)
        self.slots = pool.take(self.rows, sequence.slots.last)
        slots = self.slots.tolist()
        end = start + self._chain_length
        chain = self.chain_rows
        for position in range(start, end):
            wanted = self._finishes_chain and position == end - 1
            chain.append(builder.add_row(sequence.tokens[position], position, slots[position - start], wanted))
        if self._finishes_chain:
            self.sampled_positions.append(end)
        context = sequence.slots.array()
        rows: dict[int, int] = {}
        nodes = [*self.nodes, *self.probes.nodes]
        telling = {id(node) for node in (*self.nodes, *self.probes.asked)}
        for node, slot in zip(nodes, slots[self._chain_length :], strict=True):
            node.slot = slot
            rows[id(node)] = builder.add_row(node.token, node.position, slot, id(node) in telling)
            if id(node) in telling:
                self.sampled_positions.append(node.position + 1)
        asked: set[int] = set()
        parents = {id(node.parent) for node in nodes}
        leaves = [node for node in nodes if id(node) not in parents]
        for index, leaf in enumerate(leaves):
            path = [rows[id(node)] for node in leaf.path_from(sequence.tree.root)]
            fresh = next(i for i, row in enumerate(path) if row not in asked)
            asked.update(path)
            builder.add_lane(context, chain + path, 0 if index == 0 else len(chain) + fresh)
        if not leaves:
            builder.add_lane(context, chain)

    def tree_rows(self) -> TreeRows:
        """Of what is drawn from, the rows behind the chain and the nodes; not those of probes."""
        rows = {id(node): row for row, node in enumerate(self.nodes, start=1)}
        return TreeRows(
            parents=[-1, *(rows.get(id(node.parent), 0) for node in self.nodes)],
            tokens=[-1, *(node.token for node in self.nodes)],
        )

    def keep(self, accepted: list[Node], pool: SlotPool) -> None:
        """The sequence keeps the slots of its computed tokens and accepted nodes, the pool gets the others back."""
        kept = {id(node) for node in accepted}
        self.sequence.slots.extend(self.chain)
        self.sequence.slots.extend([node.slot for node in accepted])
        pool.give_back([node.slot for node in (*self.nodes, *self.probes.nodes) if id(node) not in kept])

    def walk(self, drawn: list[int], on_path: list[bool] | None = None) -> tuple[list[Node], list[int]]:
        """Follow the target's tokens: the accepted nodes, and all tokens to commit (the bonus token last).

        on_path: whether each row was found to be on their path; None if that is to be found here.
        """
        if on_path is not None:
            found = [node for node, kept in zip(self.nodes, on_path[1 : 1 + len(self.nodes)], strict=True) if kept]
            found.sort(key=lambda node: node.position)
            return found, [*(node.token for node in found), drawn[self.row_behind(found)]]
        after = {id(node): token for node, token in zip(self.nodes, drawn[1 : 1 + len(self.nodes)], strict=True)}
        node, token = self.sequence.tree.root, drawn[0]
        accepted, tokens = [], [token]
        while (child := node.children.get(token)) is not None and id(child) in after:
            accepted.append(child)
            node, token = child, after[id(child)]
            tokens.append(token)
        return accepted, tokens

    def rejected(self, accepted: list[Node]) -> list[RejectedDraft]:
        """The verified nodes that are not among the accepted ones. To be asked before the tree is re-rooted."""
        kept = {id(node) for node in accepted}
        root = self.sequence.tree.root.position
        return [
            RejectedDraft(node.token, node.source, node.position, node.position - root)
            for node in self.nodes
            if id(node) not in kept
        ]

    def told(self, drawn: list[int]) -> list[int]:
        """Of the drawn tokens those that the probes asked for."""
        return drawn[1 + len(self.nodes) :]

    def row_behind(self, accepted: list[Node]) -> int:
        """Which of the drawn tokens is the last one committed, if the accepted nodes are these."""
        return self.nodes.index(accepted[-1]) + 1 if accepted else 0

    def log_probs(self, raw: Tensor, accepted: list[Node], tokens: list[int]) -> LogProbs | None:
        """Of the tokens to commit, if the accepted nodes are these; None if they are not asked for.

        raw [rows, V]: the target's own logits. Nothing is computed but for rows on the path.
        """
        top = self.sequence.spec.logprobs
        if top is None or not tokens:
            return None
        rows = {id(node): row for row, node in enumerate(self.nodes, start=1)}
        path = [0, *(rows[id(node)] for node in accepted)]
        return log_probs(raw[path[: len(tokens)]], tokens, top)

    def walk_by(self, rule: Rule, drawn: list[int], logits: Tensor) -> tuple[list[Node], list[int]]:
        """As `walk`, by another rule than the coupled one. logits [len(drawn), V]: what the tokens were drawn from.

        Nothing of the vocabulary's size is computed but for nodes on the path.
        """
        rows = {id(node): row for row, node in enumerate(self.nodes, start=1)}
        node, row = self.sequence.tree.root, 0
        accepted: list[Node] = []
        tokens: list[int] = []
        while True:
            token = drawn[row]
            if token >= 0:  # else the logits are bad
                token = rule.token(self._visit(node, row, rows, token, logits))
            tokens.append(token)
            child = node.children.get(token)
            if child is None or id(child) not in rows:
                return accepted, tokens
            accepted.append(child)
            node, row = child, rows[id(child)]

    def _visit(self, node: Node, row: int, rows: dict[int, int], drawn: int, logits: Tensor) -> Visit:
        def distribution() -> np.ndarray:
            batch = SamplingBatch.build([self.sequence.sampling], [node.position + 1], logits.device)
            row_of_one: np.ndarray = probabilities(logits[row : row + 1], batch)[0]
            return row_of_one

        verified = [child for child in node.children.values() if id(child) in rows]
        return Visit(node, verified, drawn, distribution)
