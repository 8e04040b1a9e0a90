"""One sequence's part of a step: its rows, the walk through verified nodes, commit and rollback of their slots."""

from __future__ import annotations

from draftwire_core.engine.acceptance.rule import VerifiedTree
from draftwire_core.engine.drafters.probing import NO_PROBES
from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.sequence import Sequence
from draftwire_core.engine.engine.step_result import RejectedDraft
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.kv.recurrent_states import LaneState
from draftwire_core.engine.logits.logit_editor import TreeRows
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.sampling.log_probs import LogProbs, log_probs
from draftwire_core.engine.tree.token_tree import Node


class VerificationJob:
    """One sequence's rows in a step: a part of its pending tokens, then the nodes to verify, then probes."""

    def __init__(self, sequence: Sequence, chain_length: int, nodes: list[Node]):
        self.sequence = sequence
        self.nodes = nodes
        self.probes = NO_PROBES
        """Probes computed next to the nodes, in slots for this step only; they need a chain that completes the pending
        tokens."""
        self.prober: str | None = None
        """The drafter that the probes belong to."""
        self._chain_length = chain_length
        self._finishes_chain = chain_length == sequence.pending
        self.slots: list[int] = []
        """The slots of all its rows, once it is laid out."""
        self.chain_rows: list[int] = []
        """The batch's rows that hold the pending tokens."""
        self.sampled_positions: list[int] = []
        """Position of each token to draw: after the chain, then after each node, then after each asked probe."""

    @property
    def rows(self) -> int:
        """Number of the step's rows that belong to this sequence."""
        return self._chain_length + len(self.nodes) + len(self.probes.nodes)

    @property
    def chain(self) -> list[int]:
        """Slots of the pending tokens."""
        return self.slots[: self._chain_length]

    def lay_out(self, builder: BatchBuilder, pool: SlotPool) -> None:
        """Takes slots and adds this sequence's rows and lanes to a batch."""
        sequence = self.sequence
        start = sequence.slots.length
        slots = self.slots = pool.take_list(self.rows, sequence.slots.last)
        end = start + self._chain_length
        chain = self.chain_rows
        for position in range(start, end):
            wanted = self._finishes_chain and position == end - 1
            chain.append(builder.add_row(sequence.tokens[position], position, slots[position - start], wanted))
        if self._finishes_chain:
            self.sampled_positions.append(end)
        context = sequence.slots.array()
        if len(slots) == self._chain_length:
            state = LaneState(sequence.state, 0, sequence.kept_positions(start, end))
            builder.add_lane(context, chain, 0, state, owner=sequence.slots)
            return
        rows: dict[int, int] = {}
        nodes = [*self.nodes, *self.probes.nodes]
        telling = {id(node) for node in (*self.nodes, *self.probes.asked)}
        for node, slot in zip(nodes, slots[self._chain_length :], strict=True):
            node.slot = slot
            rows[id(node)] = builder.add_row(node.token, node.position, slot, id(node) in telling)
            if id(node) in telling:
                self.sampled_positions.append(node.position + 1)
        chained = len(chain) if self.nodes else 0  # a step with nodes may be repeated without them
        asked: set[int] = set()
        parents = {id(node.parent) for node in nodes}
        leaves = [node for node in nodes if id(node) not in parents]
        for index, leaf in enumerate(leaves):
            path = [rows[id(node)] for node in leaf.path_from(sequence.tree.root)]
            fresh = next(i for i, row in enumerate(path) if row not in asked)
            asked.update(path)
            state = LaneState(sequence.state, chained + len(path))
            builder.add_lane(
                context, chain + path, 0 if index == 0 else len(chain) + fresh, state, owner=sequence.slots
            )

    def tree_rows(self) -> TreeRows:
        """Describes the rows after the chain and after each node, from which tokens are drawn; probes are left out."""
        rows = {id(node): row for row, node in enumerate(self.nodes, start=1)}
        return TreeRows(
            parents=[-1, *(rows.get(id(node.parent), 0) for node in self.nodes)],
            tokens=[-1, *(node.token for node in self.nodes)],
        )

    def commit(self, accepted: list[Node]) -> None:
        """Adds the slots of the computed tokens and of the accepted nodes to the sequence's own."""
        self.sequence.slots.extend([*self.chain, *(node.slot for node in accepted)])

    def rollback(self, accepted: list[Node], pool: SlotPool) -> None:
        """Rolls the step back to the accepted nodes: the slots of all other nodes, and of probes, return to the pool.

        No tensor is copied or cleared. A slot holds the keys and values of one token, and a slot that belongs to no
        sequence is never read.
        """
        if len(self.slots) == self._chain_length:
            return
        kept = {id(node) for node in accepted}
        pool.give_back([node.slot for node in (*self.nodes, *self.probes.nodes) if id(node) not in kept])

    def undo(self, pool: SlotPool) -> None:
        """Returns all slots of the step to the pool, including those of pending tokens, so that the step can be
        repeated."""
        pool.give_back(self.slots)

    def walk(self, rows: AskedRows) -> tuple[list[Node], list[int]]:
        """Gets from the sequence's rule the accepted nodes and all tokens to commit (the bonus token last).

        rows: the job's own. Nothing of vocabulary size is computed unless the rule asks for probabilities.
        """
        if self.probes.asked:
            rows = rows.of(slice(1 + len(self.nodes)))
        sequence = self.sequence
        return sequence.rule.walk(
            VerifiedTree(sequence.tree.root, self.nodes, rows.drawn, rows.on_path, sequence.sampling, rows)
        )

    def rejected(self, accepted: list[Node]) -> list[RejectedDraft]:
        """Returns the verified nodes that were not accepted. Valid only before the tree is re-rooted."""
        kept = {id(node) for node in accepted}
        root = self.sequence.tree.root.position
        return [
            RejectedDraft(node.token, node.source, node.position, node.position - root)
            for node in self.nodes
            if id(node) not in kept
        ]

    def told(self, drawn: list[int]) -> list[int]:
        """Returns the drawn tokens that answer the probes."""
        return drawn[1 + len(self.nodes) :]

    def row_behind(self, accepted: list[Node]) -> int:
        """Returns the index of the last committed token among the drawn ones, given the accepted nodes."""
        return self.nodes.index(accepted[-1]) + 1 if accepted else 0

    def log_probs(self, rows: AskedRows, accepted: list[Node], tokens: list[int]) -> LogProbs | None:
        """Returns the log-probabilities of the tokens to commit, or None if the sequence does not ask for them.

        rows: the job's own; only those on the accepted path are read.
        """
        top = self.sequence.spec.logprobs
        if top is None or not tokens:
            return None
        return log_probs(rows.raw[self.path_rows(accepted, len(tokens))], tokens, top)

    def path_rows(self, accepted: list[Node], count: int) -> list[int]:
        """Returns the job's rows after which the first `count` tokens to commit were drawn."""
        rows = {id(node): row for row, node in enumerate(self.nodes, start=1)}
        return [0, *(rows[id(node)] for node in accepted)][:count]
