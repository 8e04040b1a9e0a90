"""Drafting with a small model: best-first growth of all sequences' trees, one packed batch per step."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, Growth
from draftwire_core.engine.drafters.features.draft_network import in_target_ids
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.model.draft_ahead import Begun, DraftAhead, Trust
from draftwire_core.engine.drafters.model.slot_drafter import SlotDraft, SlotDrafter, within
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.kv.recurrent_states import LaneState
from draftwire_core.engine.model.cuda.slots.draft_batch import DRAFT_WIDTH, DraftPlan
from draftwire_core.engine.model.cuda.slots.draft_steps import STEPS, rows_for
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.candidate_finder import candidate_finder
from draftwire_core.engine.sampling.compiled_sampler import Ranking, fits
from draftwire_core.engine.sampling.distributions import by_entropy, draw
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.tree.token_tree import DraftDistribution, Node

STEPS_AHEAD = 4
"""Steps that are drafted by one call unless others are asked for: a verdict that comes meanwhile waits for all."""
_TREE_ROOM = 32
"""Number of KV slots reserved for a sequence's tree at admission."""
Expanded: TypeAlias = "tuple[Hashable, ModelDraft, Node]"
"""A node whose children a step finds, with its sequence and that one's key."""


class ModelDraft(SlotDraft):
    """One sequence. Its expanded nodes hold slots in addition to those of its leading tokens."""

    def __init__(self, spec: DraftSpec, window: ContextWindow | None = None):
        """window: what the model reads of the text; None for all of it."""
        super().__init__(spec, list(spec.tokens))
        self._window = window
        self._turn_window()

    @property
    def left_out(self) -> int:
        """Number of the text's tokens that are not read: by so much a position in the model is smaller."""
        return self.tree.committed_length - len(self.tokens)

    @property
    def max_position(self) -> int:
        """The position from which nodes need no children, or the model has no positions for them."""
        last = super().max_position
        return last if self._window is None else min(last, self.left_out + self._window.size)

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict; the walked nodes' slots become the sequence's own. Returns those that are free now: of
        pruned nodes, and of everything if the window has to be read afresh."""
        walked, pruned = self.tree.commit(tokens)
        self.tokens.extend(tokens)
        self.slots.extend([node.slot for node in walked if node.slot >= 0])
        return [node.slot for node in pruned if node.slot >= 0] + self._turn_window()

    def _turn_window(self) -> list[int]:
        """Gives up a full window for its newer half, and returns the slots that are free now."""
        newest = None if self._window is None else self._window.newest(self.tokens)
        if newest is None:
            return []
        freed: list[int] = self.give_up().tolist()
        self.tokens = newest
        return freed

    def give_up(self) -> np.ndarray:
        """Releases all KV slots, those of nodes included, and returns them."""
        self.state.release()
        slots = [*self.slots.clear()]
        for node in self.tree.nodes():
            if node.slot >= 0:
                slots.append(node.slot)
                node.slot = -1
        return np.array(slots, dtype=np.int64)


class Outlook(NamedTuple):
    """The present drafts, and the expected gain of another step."""

    worths: list[float]
    """Each node's probability of being on the target's path."""
    gains: list[float]
    """Probability of being on the target's path for the best node that each expansion is expected to add."""
    rows: int
    """Number of rows in the step."""


class DraftModelDrafter(SlotDrafter[ModelDraft]):
    """A drafter over a packed model that shares the target's tokenizer.

    Tokens are drafted under the request's own noise (coupled sampling). At any temperature the likeliest child is
    therefore the token that the target would draw if it agreed with the draft model. Under the rejection rule, tokens
    are drawn with other random numbers derived from the request's seed, and proposed together with their distribution.
    """

    def __init__(self, model: PackedModel, growth: TreeGrowth | None = None):
        """growth: chooses the nodes to draft; the default assumes that a step's cost does not depend on its rows."""
        super().__init__(model, _TREE_ROOM, growth)
        self._find = candidate_finder(model.device)
        self._trust = Trust()

    def begin(self, spec: DraftSpec) -> ModelDraft:
        """Returns the draft of a sequence, which reads its last tokens if all are too many.

        Raises DrafterFullError if a tree can never fit.
        """
        room = self.model.pool.capacity - spec.max_tree_nodes
        if room < 1:
            raise DrafterFullError(
                f"a tree needs {spec.max_tree_nodes} KV slots, and the pool has only {self.model.pool.capacity}"
            )
        return ModelDraft(spec, ContextWindow.of(min(self.model.context_length, room), spec))

    def observe(self, draft: ModelDraft, tokens: Sequence[int]) -> None:
        """Learns from a verdict which nodes are worth drafting."""
        self._growth.observe(draft.tree, tokens)

    @property
    def busy(self) -> bool:
        """Whether a sequence has pending tokens or nodes worth expanding."""
        running = self._queue.running.values()
        return any(draft.readable or self._growth.can_expand(draft.growing) for draft in running)

    def outlook(self) -> Outlook:
        """Returns the expected gain of the next `grow`.

        A sequence that is catching up counts as if it had one pending token: the cost of catching up benefits later
        steps too.
        """
        acceptance = self._growth.acceptance
        running = list(self._queue.running.values())
        worths: dict[int, float] = {}
        for draft in running:
            worths[id(draft.tree.root)] = 1.0
            for node in draft.tree.root.subtree():
                worths[id(node)] = worths[id(node.parent)] * acceptance.probability(node)
        growing = [draft.growing for draft in running if not draft.readable]
        pending = [draft.tree.root for draft in running if draft.readable]
        chosen = [
            node for _, node in self._growth.expansions(growing, len(pending), self.model.most_rows - len(pending))
        ]
        children = [acceptance.expected(rank) for rank in range(self._growth.width)]
        gains = [worths[id(node)] * chance for node in pending + chosen for chance in children]
        for draft in running:
            del worths[id(draft.tree.root)]
        return Outlook(list(worths.values()), gains, len(pending) + len(chosen))

    @property
    def following(self) -> float:
        """The probability that the next best node, not yet drafted, will be right given that its parent is."""
        return self._growth.acceptance.next_probability()

    @property
    def catching_up(self) -> bool:
        """Whether a sequence has more than one token that has not been through the model."""
        return any(draft.pending > 1 for draft in self._queue.running.values())

    @property
    def most_steps(self) -> int:
        """Most steps that `grow` drafts by one call of the device."""
        drafts = self.model.drafts
        return 1 if drafts is None or self._growth.width > DRAFT_WIDTH else max(1, drafts.most_steps)

    def grow(self, steps: int = STEPS_AHEAD) -> Growth:
        """Drafts one step, or on a GPU up to `steps` of them by one call.

        Prompts are computed in chunks next to the other sequences' drafting.

        When KV slots run out, the fullest verifier's most recently opened sequences give up theirs, to be recomputed
        when there is room. Preempting those with the oldest verdict instead would be worse: verdicts come in turn, so
        each sequence would lose its slots just before it needs them.
        """
        started = time.perf_counter()
        self.clock.enter("plan")
        builder = BatchBuilder()
        running = self._queue.running
        self._queue.make_room(lambda: len(running))
        most = min(self.model.most_rows, self.model.pool.free)
        growing = [(key, draft) for key, draft in running.items() if not draft.readable]
        expanded: list[Expanded] = []
        # Committed tokens come before guesses.
        most_pending = min(self._growth.cost.prompt_rows(len(growing), self.model.most_rows // 2), most)
        catching_up = self.catching_up
        growth = Growth([], {}, 0.0, preempted=self._queue.take_preempted())
        self.clock.enter("layout")
        for key, draft, count in self._reading(lambda draft: draft.readable, most_pending, growth):
            if self._read_committed(builder, key, draft, count):
                expanded.append((key, draft, draft.tree.root))
        self.clock.enter("plan")
        trees = [(draft.spec.verifier, draft.growing) for _, draft in growing]
        chosen = self._shares.expansions(trees, len(builder), most - len(builder))
        self.clock.enter("layout")
        for index, node in chosen:
            key, draft = growing[index]
            self._expand(builder, draft, node)
            growth.rows[draft.spec.verifier] += 1
            expanded.append((key, draft, node))
        if not len(builder):
            return growth
        taken = 0 if catching_up else self._draft_ahead(expanded, growth, steps)
        if not taken:
            self._draft_step(builder, expanded)
        for key, draft, _ in expanded:
            draft.report(key, growth, last=not self._growth.can_expand(draft.growing))
        growth.seconds = time.perf_counter() - started
        if not catching_up:
            self._growth.cost.observe(len(builder), growth.seconds / max(1, taken), builder.seen)
        return growth

    def _draft_step(self, builder: BatchBuilder, expanded: Sequence[Expanded]) -> None:
        """Runs a step, and adds the children of the nodes that it expands to their trees."""
        logits = self._forward(builder)
        if not expanded:
            return
        self.clock.enter("sample")
        specs = [draft.spec for _, draft, _ in expanded]
        vocabulary = logits.shape[1]
        logits = within(logits, [min(spec.vocab_size or vocabulary, vocabulary) for spec in specs])
        params, positions = [spec.sampling for spec in specs], [node.position + 1 for _, _, node in expanded]
        drawn: dict[int, tuple[DraftDistribution, list[int]]] = {}
        if fits(logits) and not any(spec.draws or spec.dynamic_temperature for spec in specs):
            token_ids, log_probs = Ranking(params, positions).candidates(logits, self._growth.width)
        else:
            sampling = SamplingBatch.build(params, positions, self.model.device)
            cooler = [row for row in sampling.sampled_rows if specs[row].dynamic_temperature]
            if cooler:
                sampling = by_entropy(logits, sampling, cooler)
            token_ids, log_probs = self._find(logits, sampling, self._growth.width)
            drawn = self._draw(logits, specs, sampling)
        self.clock.enter("walk")
        for row, (_, draft, node) in enumerate(expanded):
            if row in drawn and not node.children:
                draft.number(self._growth.drawn_children(draft.growing, node, *drawn[row]))
            else:
                self._add_children(draft, node, token_ids[row], log_probs[row])

    def _add_children(
        self, draft: ModelDraft, node: Node, token_ids: Sequence[int], log_probs: Sequence[float]
    ) -> Sequence[Node]:
        """Adds a node's candidates to its tree; returns those that are new."""
        if node.children:  # a node recomputed after preemption has them already
            return ()
        children = self._growth.children(draft.growing, node, token_ids, log_probs)
        draft.number(children)
        return children

    def _draft_ahead(self, expanded: list[Expanded], growth: Growth, steps: int) -> int:
        """Runs a step that `expanded` is all of, with those that probably follow it, and adds what they find to the
        trees and to `expanded`.

        Returns the number of steps run; 0, with nothing done, where the step is better run alone.
        """
        drafts, pool = self.model.drafts, self.model.pool
        running = list(self._queue.running.values())
        if drafts is None or min(steps, self.most_steps) < 2 or not self._alike(running) or not self._trust.now():
            return 0
        self.clock.enter("plan")
        place = {id(draft): index for index, draft in enumerate(running)}
        roots = {id(draft) for _, draft, node in expanded if node is draft.tree.root}
        begun: list[Begun] = []
        for draft in running:
            slots, with_root = draft.slots.array(), id(draft) in roots
            begun.append(Begun(draft, slots[: len(slots) - with_root].copy(), draft.slots.last if with_root else -1))
        first = [(place[id(draft)], node) for _, draft, node in expanded]
        rows = rows_for(len(first), self._growth.width)
        if rows is None or pool.free < rows * steps + len(running):
            return 0
        ahead = DraftAhead.of(self._growth, begun, first, pool, min(steps, self.most_steps), rows)
        length = max((each for each in STEPS if each <= len(ahead)), default=1)
        ahead = ahead.cut(length, pool)
        self.clock.enter("forward")
        found = drafts.draft(self._plan(ahead)) if length > 1 else None
        if found is None:
            ahead.give_back(pool)
            return 0
        self.clock.enter("walk")
        keys = list(self._queue.running)
        trees = [(draft.spec.verifier, draft.growing) for draft in running]
        chosen, adopted = first, 0
        while chosen and all(id(node) in ahead.known for _, node in chosen):
            for index, node in chosen:
                row, draft = ahead.known.pop(id(node)), running[index]
                if adopted:
                    node.slot = row.slot
                    growth.rows[draft.spec.verifier] += 1
                    expanded.append((keys[index], draft, node))
                where = found.token_ids[row.step][row.index], found.log_probs[row.step][row.index]
                ahead.found(row, self._add_children(draft, node, *where))
            adopted += 1
            chosen = self._shares.expansions(trees, 0, self.model.most_rows)
        ahead.give_back(pool)
        self._trust.observe(adopted, length)
        return length

    def _plan(self, ahead: DraftAhead) -> DraftPlan:
        """The plan of a draft of several steps, for the model."""
        return ahead.plan

    def _alike(self, running: Sequence[ModelDraft]) -> bool:
        """Whether all sequences are of one verifier, have been read, and need nothing but the best tokens under the
        noise."""
        specs = [draft.spec for draft in running]
        return (
            len({spec.verifier for spec in specs}) == 1
            and not any(draft.pending for draft in running)
            and not any(spec.draws or spec.dynamic_temperature or spec.sampling.typical_p < 1 for spec in specs)
            and min(spec.vocab_size or self.model.vocab_size for spec in specs) >= self.model.vocab_size
        )

    def _read_committed(self, builder: BatchBuilder, key: Hashable, draft: ModelDraft, count: int) -> bool:
        """Adds the rows of the next `count` committed tokens; returns whether they include the last one."""
        return draft.add_pending(builder, self.model.pool, count)

    def _forward(self, builder: BatchBuilder) -> torch.Tensor:
        """Runs the step's pass; returns the logits of the rows that want them, [rows, target's vocabulary or more]."""
        batch = builder.build(self.model.group_size, self.model.device)
        self.clock.enter("forward")
        return in_target_ids(self.model.forward(batch), self.model.drafted, self.model.vocab_size)

    def _expand(self, builder: BatchBuilder, draft: ModelDraft, node: Node) -> None:
        """Adds the row of a node whose ancestors have all been through the model."""
        ancestors = [ancestor.slot for ancestor in node.path_from(draft.tree.root)[:-1]]
        (node.slot,) = self.model.pool.take_list(1, ancestors[-1] if ancestors else draft.slots.last)
        row = builder.add_row(node.token, node.position - draft.left_out, node.slot, wants_logits=True)
        context = np.concatenate([draft.slots.array(), np.array(ancestors, dtype=np.int64)])
        builder.add_lane(context, [row], 0, LaneState(draft.state, len(ancestors) + 1), owner=draft.slots)

    def _draw(
        self, logits: torch.Tensor, specs: Sequence[DraftSpec], sampling: SamplingBatch
    ) -> dict[int, tuple[DraftDistribution, list[int]]]:
        """Returns the draws and their distributions by row, for sequences that draw.

        Greedy rows are left out: without noise all acceptance rules are the same.
        """
        rows = [row for row in sampling.sampled_rows if specs[row].draws]
        if not rows:
            return {}
        return dict(zip(rows, draw(logits[rows], sampling.select(rows), self._growth.width), strict=True))
