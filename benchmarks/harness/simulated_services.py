"""A verifier, a drafter and the link between them in virtual time, deciding with the product's own logic.

Only what takes time or needs a model is simulated: steps, messages, and the models' tokens. The decisions what to
verify, whether to wait and what to draft, calibration, timing and trees come from the modules that the services run.
The order of events mirrors `VerificationEngine`, `DraftModelDrafter` and their loops: messages that arrive during a
step are read after it, verdicts leave as the step ends, and committed tokens are computed before guesses.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.harness.simulated_models import VOCABULARY, ModelPair
from draftwire_core.engine.drafters.tree_growth import GrowingTree
from draftwire_core.engine.planning.acceptance_model import observe_commit
from draftwire_core.engine.planning.drafter_timing import ProposalClock
from draftwire_core.engine.planning.planner import Candidate, Plan, Planner
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import Proposal, ProposalReader
from draftwire_core.engine.tree.token_tree import Node, TokenTree

_MAX_ROWS = 256


class VirtualClock:
    """Virtual time that advances from event to event."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Runs `action` after this many seconds; actions due at the same time run in the order they were scheduled."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action))

    def run(self, done: Callable[[], bool]) -> None:
        """Runs events until `done`. Raises RuntimeError if no event is left before that."""
        while not done():
            if not self._events:
                raise RuntimeError("no event is left: everyone waits for somebody else")
            self.now, _, action = heapq.heappop(self._events)
            action()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tokens that a step committed for a sequence."""

    sequence: int
    committed_length: int
    tokens: list[int]
    ended: bool
    verified: int
    """Number of the sequence's nodes verified in that step."""
    accepted: int
    """Number of verified nodes that were accepted."""
    max_tree_nodes: int | None = None
    """Most live nodes from now on, if fewer than at the opening."""


@dataclass(frozen=True, slots=True)
class SettledStep:
    """Result of a verifier's step."""

    verdicts: list[Verdict]
    plain_seconds: float
    """Expected time of a step for the same sequences without speculation, as in StepResult."""
    node_tokens: float
    """Price of one verified draft token in tokens of plain decoding, as in StepResult."""


class Growth(Protocol):
    """The decisions of a drafter about what to draft: `TreeGrowth`, or a policy to compare it with."""

    def observe(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Learns from committed tokens, like TreeGrowth.observe."""

    def expansions(self, trees: Sequence[GrowingTree], other_rows: int, max_rows: int) -> list[tuple[int, Node]]:
        """Chooses nodes to expand, like TreeGrowth.expansions."""

    def children(
        self, growing: GrowingTree, parent: Node, tokens: Sequence[int], log_probs: Sequence[float]
    ) -> list[Node]:
        """Adds children of a node, like TreeGrowth.children."""


class _Draft:
    """One sequence in the drafter. A node's slot is set once it has been through the model."""

    def __init__(self, pair: ModelPair, max_nodes: int, max_length: int):
        self.pair = pair
        self.length = 1
        self.computed = 0
        """Committed tokens that have been through the model."""
        self.next_id = 1
        self.tree = TokenTree(1, pair.target(0))
        self.max_nodes = max_nodes
        self.opened_with = max_nodes
        self.max_position = max_length - 2

    @property
    def growing(self) -> GrowingTree:
        """The tree and its bounds."""
        return GrowingTree(self.tree, self.max_nodes, self.max_position)

    def on_path(self, node: Node) -> bool:
        """Whether the node's path consists of the target's own tokens."""
        path = node.path_from(self.tree.root)
        return all(each.token == self.pair.target(each.position) for each in path)


class SimulatedDrafter:
    """A drafter that drafts for all sequences of a verifier."""

    def __init__(
        self,
        clock: VirtualClock,
        growth: Growth,
        cost: StepCost,
        send: Callable[[dict[int, Proposal]], None],
    ):
        self._clock = clock
        self._growth = growth
        self._cost = cost
        self._send = send
        self._inbox: list[Verdict] = []
        self._drafts: dict[int, _Draft] = {}
        self._stepping = False

    def open(self, sequence: int, pair: ModelPair, max_nodes: int, max_length: int) -> None:
        """Starts drafting for a sequence."""
        self._drafts[sequence] = _Draft(pair, max_nodes, max_length)
        if not self._stepping:
            self._work()

    def receive(self, verdicts: list[Verdict]) -> None:
        """Receives verdicts from the verifier."""
        self._inbox.extend(verdicts)
        if not self._stepping:
            self._work()

    def _work(self) -> None:
        for verdict in self._inbox:
            self._commit(verdict)
        self._inbox.clear()
        expanded: list[tuple[int, Node]] = []
        rows = 0
        growing: list[int] = []
        for key, draft in self._drafts.items():
            pending = draft.length - draft.computed
            if pending:
                rows += pending
                draft.computed = draft.length
                expanded.append((key, draft.tree.root))
            else:
                growing.append(key)
        trees = [self._drafts[key].growing for key in growing]
        for index, node in self._growth.expansions(trees, rows, _MAX_ROWS - rows):
            node.slot = 1
            rows += 1
            expanded.append((growing[index], node))
        if not rows:
            return
        self._stepping = True
        self._clock.after(self._cost.seconds(rows), lambda: self._finish(expanded))

    def _finish(self, expanded: list[tuple[int, Node]]) -> None:
        self._stepping = False
        fresh: dict[int, list[Node]] = {}
        for key, parent in expanded:
            draft = self._drafts[key]
            tokens, log_probs = draft.pair.draft(parent.position + 1, draft.on_path(parent))
            for node in self._growth.children(draft.growing, parent, tokens, log_probs):
                node.id = draft.next_id
                draft.next_id += 1
                fresh.setdefault(key, []).append(node)
        if fresh:
            self._send({key: self._proposal(self._drafts[key], nodes) for key, nodes in fresh.items()})
        self._work()

    def _proposal(self, draft: _Draft, nodes: list[Node]) -> Proposal:
        return Proposal.of(draft.tree, nodes, last=not self._growth.expansions([draft.growing], 0, 1))

    def _commit(self, verdict: Verdict) -> None:
        if verdict.ended:
            del self._drafts[verdict.sequence]
            return
        draft = self._drafts[verdict.sequence]
        self._growth.observe(draft.tree, verdict.tokens)
        walked, _ = draft.tree.commit(verdict.tokens)
        draft.length += len(verdict.tokens)
        draft.computed += sum(node.slot >= 0 for node in walked)
        most = verdict.max_tree_nodes
        draft.max_nodes = draft.opened_with if most is None else min(most, draft.opened_with)


class _Sequence:
    """One sequence in the verifier."""

    def __init__(self, pair: ModelPair, max_nodes: int, max_length: int):
        self.pair = pair
        self.tokens = [pair.target(0)]
        self.tree = TokenTree(1, self.tokens[0])
        self.reader: ProposalReader | None = None
        self.clocks: dict[str, ProposalClock] = {}
        self.max_nodes = max_nodes
        self.max_length = max_length


@dataclass(slots=True)
class Tally:
    """Counts of a verifier."""

    tokens: int = 0
    steps: int = 0
    sequence_steps: int = 0
    """Sum over steps of the sequences in them."""
    verified: int = 0
    """Number of nodes verified."""
    waited: float = 0.0
    """Seconds between steps."""
    survivals: int = 0
    """Verdicts after which a subtree survived, including nodes that arrived during the step."""
    seconds: float = 0.0
    """Seconds from the start to the last token."""
    first_tokens: int = 0
    """Tokens of first steps."""
    first_seconds: float = 0.0
    """Seconds of first steps."""

    def add(self, other: Tally) -> None:
        """Adds the counts of a later run."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def tokens_per_second(self) -> float:
        """Rate as clients measure it, from the first step's tokens on."""
        return (self.tokens - self.first_tokens) / (self.seconds - self.first_seconds)


class SimulatedVerifier:
    """A verifier, with or without a drafter."""

    def __init__(
        self,
        clock: VirtualClock,
        planner: Planner,
        cost: StepCost,
        send: Callable[[SettledStep], None],
    ):
        """cost: actual times of steps, as opposed to what the planner expects."""
        self._clock = clock
        self._planner = planner
        self._cost = cost
        self._send = send
        self._sequences: dict[int, _Sequence] = {}
        self._inbox: list[tuple[float, dict[int, Proposal]]] = []
        self._started = False
        self._stepping = False
        self._wait_number = 0
        self._idle_since = 0.0
        self.tally = Tally()

    @property
    def done(self) -> bool:
        """Whether all sequences have ended."""
        return not self._sequences

    def add(self, sequence: int, pair: ModelPair, max_nodes: int, max_length: int, source: str | None = None) -> None:
        """Runs a sequence. source: the drafter that drafts for it."""
        running = _Sequence(pair, max_nodes, max_length)
        if source is not None:
            self._planner.add_source(source)
            running.reader = ProposalReader(source, max_nodes, VOCABULARY)
            running.clocks[source] = ProposalClock(self._planner.timings[source])
        self._sequences[sequence] = running

    def pause(self, source: str, *, paused: bool) -> None:
        """A drafter is told no verdicts from now on, or is told them again."""
        self._planner.timings[source].paused = paused

    def start(self) -> None:
        """Starts stepping."""
        self._started = True
        self._work()

    def receive(self, proposals: dict[int, Proposal]) -> None:
        """Receives proposals from a drafter."""
        self._inbox.append((self._clock.now, proposals))
        if self._started and not self._stepping:
            self._work()

    def _work(self, just_settled: bool = False) -> None:
        self._wait_number += 1
        for arrived_at, proposals in self._inbox:
            for key, proposal in proposals.items():
                sequence = self._sequences.get(key)
                if sequence is not None and sequence.reader is not None:
                    sequence.reader.merge(proposal, sequence.tree, sequence.tokens)
                    sequence.clocks[sequence.reader.source].arrived(proposal, arrived_at)
        self._inbox.clear()
        if self.done:
            return
        if just_settled:
            self.tally.survivals += sum(each.tree.size > 0 for each in self._sequences.values())
        candidates = [
            Candidate(each.tree, each.clocks, each.max_nodes, each.max_length - 2) for each in self._sequences.values()
        ]
        plan = self._planner.plan(candidates)
        wait = self._planner.worthwhile_wait(plan, candidates, self._clock.now)
        if wait > 0:
            number = self._wait_number
            if wait < math.inf:
                self._clock.after(wait, lambda: self._work() if number == self._wait_number else None)
            return
        self._stepping = True
        self.tally.waited += self._clock.now - self._idle_since
        rows = len(candidates) + sum(map(len, plan.nodes))
        seconds = self._cost.seconds(rows)
        self._clock.after(seconds, lambda: self._finish(plan, rows, seconds))

    def _finish(self, plan: Plan, rows: int, seconds: float) -> None:
        self._stepping = False
        self._idle_since = self._clock.now
        self._planner.cost.observe(rows, seconds)
        self.tally.steps += 1
        self.tally.sequence_steps += len(plan.nodes)
        self.tally.verified += rows - len(plan.nodes)
        verdicts = [self._settle(key, nodes) for key, nodes in zip(list(self._sequences), plan.nodes, strict=True)]
        self.tally.seconds = self._clock.now
        if self.tally.steps == 1:
            self.tally.first_tokens, self.tally.first_seconds = self.tally.tokens, self.tally.seconds
        cost, sequences, nodes = self._planner.cost, len(plan.nodes), rows - len(plan.nodes)
        forgone = cost.node_tokens(rows, nodes, sequences)
        self._send(SettledStep(verdicts, cost.seconds(sequences, sequences), forgone))
        self._work(just_settled=True)

    def _settle(self, key: int, nodes: list[Node]) -> Verdict:
        sequence = self._sequences[key]
        verified = {id(node) for node in nodes}
        node, tokens, accepted = sequence.tree.root, [], 0
        while True:
            token = sequence.pair.target(len(sequence.tokens) + len(tokens))
            tokens.append(token)
            child = node.children.get(token)
            if child is None or id(child) not in verified:
                break
            node, accepted = child, accepted + 1
        tokens = tokens[: sequence.max_length - len(sequence.tokens)]
        observe_commit(sequence.tree, tokens, self._planner.models)
        sequence.tree.commit(tokens)
        sequence.tokens.extend(tokens)
        self.tally.tokens += len(tokens)
        ended = len(sequence.tokens) >= sequence.max_length
        if ended:
            del self._sequences[key]
        elif not sequence.tree.size:
            for clock in sequence.clocks.values():
                clock.asked(len(sequence.tokens), self._clock.now)
        return Verdict(key, len(sequence.tokens), tokens, ended, len(nodes), min(accepted, len(tokens)))
