"""Drafting blocks from features: after each verdict one pass, whose guesses become a tree."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

import numpy as np

from draftwire_core.engine.drafters.blocks.block_network import Block, BlockNetwork, Reading
from draftwire_core.engine.drafters.drafter import DraftSpec, Growth
from draftwire_core.engine.drafters.features.feature_source import FeatureSource
from draftwire_core.engine.drafters.features.reading_drafter import READING, ReadingDraft
from draftwire_core.engine.drafters.features.received_features import ReceivedFeatures
from draftwire_core.engine.drafters.features.receiving_drafter import FeatureReceiver
from draftwire_core.engine.drafters.marginal_growth import WIDTH, MarginalGrowth
from draftwire_core.engine.drafters.model.draft_model import Outlook
from draftwire_core.engine.drafters.model.slot_drafter import SlotDrafter, check_room
from draftwire_core.engine.drafters.tree_growth import TreeGrowth


class BlockDraft(ReadingDraft):
    """One sequence. Its slots are those of the committed tokens that have been read, each next to the feature of the
    token before it."""

    def __init__(self, spec: DraftSpec):
        super().__init__(spec)
        self._guessed = False

    @property
    def waits(self) -> bool:
        """Whether a block can be guessed now: once after each verdict, when all features before the root are read."""
        room = self.tree.size < self.max_tree_nodes and self.tree.root.position < self.max_position
        return room and self.at_root and not self._guessed

    def take_block(self, key: Hashable, features: FeatureSource) -> Block:
        """Returns what to guess the block from, which counts as guessed from now on. key: the sequence's."""
        self._guessed = True
        root = self.tree.root
        before = features.read(key, np.array([root.position - 1], dtype=np.int64))
        return Block(self.slots.array(), root.token, root.position, before)

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict. Returns no slots: nodes have none."""
        self._guessed = False
        return super().commit(tokens)

    def give_up(self) -> np.ndarray:
        """Releases all KV slots and returns them; the features have to be read again."""
        self._guessed = False
        return super().give_up()


class BlockDrafter(SlotDrafter[BlockDraft]):
    """A SharedDrafter (see `drafter.SharedDrafter`) over a network that guesses blocks.

    A pass guesses a block of tokens behind a text, each without knowing the others; trees grow from these guesses
    (MarginalGrowth).
    """

    def __init__(
        self,
        network: BlockNetwork,
        features: FeatureSource,
        growth: TreeGrowth | None = None,
        width: int = WIDTH,
    ):
        """features: those of the committed tokens. growth: has the cost of steps, and learns from all verdicts. width:
        most children of a node."""
        super().__init__(network.model, network.rows, growth)
        self._network = network
        self._features = features
        self._block = network.rows
        self.marginals = MarginalGrowth(
            network.guesses, "position", network.model.device, self._growth.acceptance, width
        )

    def begin(self, spec: DraftSpec) -> BlockDraft:
        """Returns the draft of a sequence. Raises DrafterFullError if the sequence can never fit."""
        check_room(spec, self._block, self.model.pool)
        return BlockDraft(spec)

    def observe(self, draft: BlockDraft, tokens: Sequence[int]) -> None:
        """Learns from a verdict how often the guesses for each position are right."""
        self.marginals.observe(draft, tokens)

    @property
    def busy(self) -> bool:
        """Whether a sequence has features to read or a block to guess."""
        self._look()
        return any(draft.readable or self._waits(key, draft) for key, draft in self._queue.running.items())

    @property
    def catching_up(self) -> bool:
        """Whether a sequence has many features to read."""
        return any(draft.readable > READING for draft in self._queue.running.values())

    @property
    def most_steps(self) -> int:
        """Most steps that `grow` drafts by one call of the device."""
        return 1

    @property
    def following(self) -> float:
        """The probability that the next best node, not yet drafted, will be right given that its parent is."""
        return next(iter(self.marginals.acceptance.values())).next_probability()

    def outlook(self) -> Outlook:
        """Returns the expected gain of the next `grow`."""
        worths: dict[int, float] = {}
        running = self._queue.running.values()
        for draft in running:
            worths[id(draft.tree.root)] = 1.0
            for node in draft.tree.root.subtree():
                worths[id(node)] = worths[id(node.parent)] * self.marginals.worth(node)
        for draft in running:
            del worths[id(draft.tree.root)]
        waiting = sum(draft.readable > 0 or self._waits(key, draft) for key, draft in self._queue.running.items())
        gains = self.marginals.expected() * waiting
        return Outlook(list(worths.values()), gains, waiting * self._block)

    def grow(self, steps: int = 1) -> Growth:
        """Reads features, and guesses a block for each sequence whose features are read. steps: has no effect.

        When KV slots run out, the fullest verifier's most recently opened sequences give up theirs, as in
        `DraftModelDrafter.grow`.
        """
        started = time.perf_counter()
        self.clock.enter("plan")
        running = self._queue.running
        self._queue.make_room(lambda: len(running) + self._block)
        self._look()
        growth = Growth([], {}, 0.0, preempted=self._queue.take_preempted())
        catching_up = self.catching_up
        self._read(growth)
        guessed = self._guess(growth)
        for key, draft in running.items():
            if draft.at_root:
                draft.report(key, growth, last=True)
        growth.seconds = time.perf_counter() - started
        if guessed and not catching_up:
            self._growth.cost.observe(guessed * self._block, growth.seconds, guessed * self._block)
        return growth

    def _waits(self, key: Hashable, draft: BlockDraft) -> bool:
        """Whether a block can be guessed now: also not while the target has given up the sequence's features."""
        return draft.waits and self._features.computed(key) >= draft.tree.root.position

    def _look(self) -> None:
        for key, draft in self._queue.running.items():
            draft.look(key, self._features)

    def _read(self, growth: Growth) -> None:
        """Reads features of committed tokens."""
        pool = self.model.pool
        most = min(self.model.most_rows, pool.free - self._block)
        if most <= 0:
            return
        self.clock.enter("forward")
        for key, draft, count in self._reading(lambda draft: draft.readable, most, growth):
            taken = draft.take_ready(count)
            slots = pool.take(count, draft.slots.last)
            tokens = [draft.tokens[int(index)] for index in taken]
            features = self._features.read(key, taken - 1)
            self._network.read(Reading(draft.slots.array(), tokens, taken, features, slots))
            draft.slots.extend(slots)

    def _guess(self, growth: Growth) -> int:
        """Guesses blocks; returns for how many sequences."""
        self.clock.enter("plan")
        running = self._queue.running
        most = min(self.model.most_rows, self.model.pool.free) // self._block
        waiting = {key: draft for key, draft in running.items() if self._waits(key, draft)}
        shares = self._shares.questions(((draft.spec.verifier, 1) for draft in waiting.values()), most)
        drafts: list[BlockDraft] = []
        blocks: list[Block] = []
        for key, draft in waiting.items():
            if shares.get(draft.spec.verifier, 0):
                shares[draft.spec.verifier] -= 1
                growth.rows[draft.spec.verifier] += self._block
                drafts.append(draft)
                blocks.append(draft.take_block(key, self._features))
        if not drafts:
            return 0
        asked = self.marginals.positions()
        self.clock.enter("forward")
        logits = self._network.guess(blocks, asked)
        self.clock.enter("sample")
        found = self.marginals.find(
            logits,
            [(draft.spec, draft.tree.root.position + ahead) for draft in drafts for ahead in range(1, asked + 1)],
        )
        self.clock.enter("walk")
        for index, draft in enumerate(drafts):
            self.marginals.extend(draft, found[index * asked : (index + 1) * asked])
        return len(drafts)


class ReceivingBlockDrafter(FeatureReceiver[BlockDraft], BlockDrafter):
    """A BlockDrafter that is given its features."""

    def __init__(self, network: BlockNetwork, growth: TreeGrowth | None = None):
        """As for BlockDrafter."""
        model = network.model
        self._received = ReceivedFeatures(model.hidden_size, model.dtype, model.device)
        BlockDrafter.__init__(self, network, self._received, growth)
