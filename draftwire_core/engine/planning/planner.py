"""The planner: decides which nodes to verify and whether to wait for more, with one cost model for both.

In expectation, a step over a batch commits one token per sequence plus the probability of every verified node. The
planner adds nodes best first over all sequences and stops where the expected tokens per second peak. Nodes delay the
prompts computed in the same step. Each such prompt therefore counts as a sequence that gains one token by the step,
while the time of the prompt's own rows is not charged to nodes. Waiting is the same trade-off with a delay added: more
nodes later against a step now. Draft length, tree width and dropping a useless drafter thus follow from measured costs
and calibrated probabilities, not from settings.

The sum over all sequences must not be at the expense of one of them: steps become no longer by nodes, and wait no
longer, than leaves each sequence its share of its plain pace (`pace.py`).

A sequence may ask for drafting in any case (`Candidate.always_draft`). Its nodes are taken first, up to its limit and
the rows of a step; the planner then decides about the others' nodes. Such a sequence is not protected itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.planning.drafter_timing import DrafterTiming, ProposalClock
from draftwire_core.engine.planning.pace import PLAIN_SHARE, Pace, PaceLimit
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.token_tree import Node, TokenTree

_LEAST_PROBABILITY = 1e-3
_SURE = 1.5
"""Tokens per second with nodes over those without, from which a plain step is not worth taking to see its time."""


@dataclass(slots=True)
class Candidate:
    """One sequence that is ready to decode."""

    tree: TokenTree
    clocks: Mapping[str, ProposalClock]
    """The clocks of the drafters currently attached to the sequence, by drafter name."""
    max_nodes: int
    """Most nodes to verify in one step."""
    max_position: int
    """Last position at which a verified node is useful."""
    allows: Callable[[Node], bool] | None = None
    """Whether a node may be committed, called for parents before their children; None if all nodes may be."""
    always_draft: bool = False
    """Whether to verify its nodes whatever they are worth."""
    chain: bool = False
    """Whether the nodes that may be committed are a chain."""
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True)
class Plan:
    """The nodes that one step verifies, with the expected result."""

    nodes: list[list[Node]]
    """The chosen nodes of each candidate, parents before children."""
    expected_tokens: float
    seconds: float
    """Expected duration of the step."""
    plain_seconds: float = 0.0
    """Expected duration of the same step without nodes."""
    expected: list[float] = field(default_factory=list)
    """Expected number of tokens of each candidate."""
    full: bool = False
    """Whether the step has no use for another node: there are as many as it may have rows for, or more; or it is to be
    plain, so that its time is measured; or nobody drafts."""
    ends: list[list[float]] = field(default_factory=list)
    """For each candidate, the probabilities of the nodes without likely children, likeliest first: where the next
    drafted nodes would attach. Empty if nobody drafts."""


class Planner:
    """Plans steps from the cost curve and each drafter's calibration and timing."""

    def __init__(self, cost: StepCost, max_rows: int, plain_share: float = PLAIN_SHARE):
        """max_rows: most rows in a step. plain_share: share of its plain pace that each sequence keeps next to the
        drafts of others, from 0 (none) to 1."""
        self.cost = cost
        self.plain_share = plain_share
        self.models: dict[str, AcceptanceModel] = {}
        self.timings: dict[str, DrafterTiming] = {}
        self._kinds: dict[str, AcceptanceModel] = {}
        self._max_rows = max_rows

    def add_source(self, source: str, *, timed: bool = True, kind: str = "") -> None:
        """Registers a drafter; statistics of a known one are kept.

        timed: whether the drafter may be waited for. kind: the kind of a drafter that serves a single request; it
        starts from the statistics of earlier drafters of its kind.
        """
        if source not in self.models:
            alike = self._kinds.setdefault(kind, AcceptanceModel()) if kind else None
            self.models[source] = AcceptanceModel(alike)
        if timed:
            self.timings.setdefault(source, DrafterTiming())

    def remove_source(self, source: str) -> None:
        """Removes a drafter and its statistics."""
        self.models.pop(source, None)
        self.timings.pop(source, None)

    def plan(
        self, candidates: Sequence[Candidate], other_rows: int = 0, max_rows: int | None = None, prompts: int = 0
    ) -> Plan:
        """Chooses the nodes of a step over `candidates` that also carries `other_rows` rows (prompt chunks).

        max_rows: most rows of this step, if there is less room than usual. prompts: number of sequences with unfinished
        prompts, which a longer step delays as it delays `candidates`.
        """
        base = len(candidates) + other_rows
        if not any(candidate.tree.size or candidate.clocks for candidate in candidates):
            return self.plain(len(candidates), other_rows)
        plain_seconds = self.cost.seconds(base, len(candidates))
        most = self._max_rows if max_rows is None else min(max_rows, self._max_rows)
        asked = [index for index, candidate in enumerate(candidates) if candidate.always_draft]
        others = [index for index, candidate in enumerate(candidates) if not candidate.always_draft]
        tokens = {index: 1.0 + candidates[index].pace.allowance for index in others}
        limit = PaceLimit(tokens, plain_seconds, self.plain_share)
        taken = self._best(candidates, asked, most - base, least=0.0) if asked else []
        base += len(taken)
        for index, _, probability in taken:
            limit.add(index, probability)
        expected = len(candidates) + sum(probability for _, _, probability in taken)
        # Other rows buy prompts, not tokens: a token is charged what it costs in a step without them.
        sequences = len(candidates)
        own_rows = sequences + len(taken)
        apart = self.cost.seconds(base, sequences) - self.cost.seconds(own_rows, sequences)
        longest = limit.longest(index for index in others if not candidates[index].tree.root.children)
        room = self.cost.worthwhile_rows(base, most - base, sequences, expected + prompts, apart)
        room = self.cost.rows_within(longest, base, room, sequences)
        ordered = self._best(candidates, others, room, least=_LEAST_PROBABILITY) if room else []
        best_count = 0
        plain_rate = best_rate = (expected + prompts) / (self.cost.seconds(base, sequences) - apart)
        for size, (index, _, probability) in enumerate(ordered, start=1):
            expected += probability
            limit.add(index, probability)
            seconds = self.cost.seconds(base + size, sequences)
            rate = (expected + prompts) / (seconds - apart)
            if rate > best_rate and limit.allows(seconds):
                best_count, best_rate = size, rate
        # While all steps have nodes, a curve that has plain ones too slow is never corrected.
        looks = base == sequences and self.cost.plain_is_due and best_rate < _SURE * plain_rate
        if looks:
            best_count = 0
        nodes: list[list[Node]] = [[] for _ in candidates]
        each = [1.0] * len(candidates)
        for index, node, probability in [*taken, *ordered[:best_count]]:
            nodes[index].append(node)
            each[index] += probability
        likely = [*taken, *ordered]
        extended = {id(node.parent) for _, node, _ in likely}
        ends = [[] if id(candidate.tree.root) in extended else [1.0] for candidate in candidates]
        for index, node, probability in likely:
            if id(node) not in extended:
                ends[index].append(probability)
        full = looks or base + best_count >= most or bool(others and len(ordered) >= room)
        seconds = self.cost.seconds(base + best_count, sequences)
        return Plan(nodes, sum(each), seconds, plain_seconds, each, full, ends)

    def plain(self, sequences: int, other_rows: int = 0) -> Plan:
        """Returns the plan of a step over so many sequences that nobody drafts for. other_rows: as for `plan`."""
        seconds = self.cost.seconds(sequences + other_rows, sequences)
        nodes: list[list[Node]] = [[] for _ in range(sequences)]
        return Plan(nodes, float(sequences), seconds, seconds, [1.0] * sequences, full=True)

    def guessed(self, tree: TokenTree, but: str) -> list[float]:
        """Returns how likely the tokens of the positions behind the committed ones, one after the other, are among a
        tree's nodes. but: a drafter whose nodes do not count."""
        found: list[float] = []
        level = [(tree.root, 1.0)]
        while level := [
            (child, probability * self.models[child.source].probability(child))
            for node, probability in level
            if probability >= _LEAST_PROBABILITY
            for child in node.children.values()
            if child.source != but and child.source in self.models
        ]:
            found.append(min(1.0, sum(probability for _, probability in level)))
        return found

    def _best(
        self, candidates: Sequence[Candidate], indices: Sequence[int], room: int, *, least: float
    ) -> list[tuple[int, Node, float]]:
        """Returns at most `room` nodes of the candidates with these indices, best first and parents before children,
        each with its candidate's index and its probability of being on the target's path, at least `least`."""
        ordered: list[tuple[int, Node, float]] = []
        # Of equally likely nodes, that of the sequence that is the least ahead comes first.
        heap: list[tuple[float, float, int, int, Node]] = []
        taken = dict.fromkeys(indices, 0)
        count = 0

        models, heappush = self.models, heapq.heappush

        def push(index: int, parent: Node, probability: float) -> None:
            nonlocal count
            candidate = candidates[index]
            if parent.position >= candidate.max_position:
                return
            allows, ahead = candidate.allows, candidate.pace.ahead
            for child in parent.children.values():
                model = models.get(child.source)
                value = probability * model.probability(child) if model else 0.0
                if value >= least and (allows is None or allows(child)):
                    count += 1
                    heappush(heap, (-value, ahead, count, index, child))

        for index in indices:
            push(index, candidates[index].tree.root, 1.0)
        while heap and len(ordered) < room:
            value, _, _, index, node = heapq.heappop(heap)
            if taken[index] >= candidates[index].max_nodes:
                continue
            taken[index] += 1
            ordered.append((index, node, -value))
            if node.children:
                push(index, node, -value)
        return ordered

    def due(self, plan: Plan, delay: float = 0.0) -> float:
        """Returns the number of tokens that a sequence's share of plain decoding commits in the time of a step.

        delay: seconds by which drafting, or waiting for proposals, delayed the step.
        """
        return self.plain_share * (delay + plan.seconds) / plan.plain_seconds

    def worthwhile_wait(self, plan: Plan, candidates: Sequence[Candidate], now: float) -> float:
        """Returns the seconds to wait for the next proposal before stepping with `plan`; 0 if stepping now is
        better."""
        if plan.full:
            return 0.0
        if all(candidate.always_draft for candidate in candidates):
            return max(
                (
                    clock.answer_wait(now)
                    for candidate, nodes in zip(candidates, plan.nodes, strict=True)
                    if not nodes and candidate.max_nodes and candidate.tree.root.position < candidate.max_position
                    for clock in candidate.clocks.values()
                ),
                default=0.0,
            )
        gains: list[float] = []
        expected_of: dict[str, list[float]] = {}
        wait = 0.0
        waiting: set[int] = set()
        for index, candidate in enumerate(candidates):
            nodes = plan.nodes[index]
            deepest = max((node.position for node in nodes), default=candidate.tree.root.position)
            if len(nodes) >= candidate.max_nodes or deepest >= candidate.max_position:
                continue
            for source, clock in candidate.clocks.items():
                expected = clock.expected_wait(now)
                if expected is None or clock.finished(candidate.tree.committed_length):
                    continue
                gains += self._gains(source, clock, plan.ends[index], expected_of, chain=candidate.chain)
                wait = max(wait, expected)
                waiting.add(index)
                break
        sequences = len(candidates)
        rows = sequences + sum(map(len, plan.nodes))
        later = plan.seconds + wait - self.cost.seconds(rows, sequences)
        rate, tokens = plan.expected_tokens / plan.seconds, plan.expected_tokens
        limit = PaceLimit(
            {
                index: plan.expected[index] + candidate.pace.allowance
                for index, candidate in enumerate(candidates)
                if index not in waiting and not candidate.always_draft
            },
            plan.plain_seconds,
            self.plain_share,
        )
        for size, gain in enumerate(sorted(gains, reverse=True)[: self._max_rows - rows], start=1):
            tokens += gain
            seconds = later + self.cost.seconds(rows + size, sequences)
            if tokens / seconds > rate and limit.allows(seconds):
                return wait
        return 0.0

    def _gains(
        self,
        source: str,
        clock: ProposalClock,
        ends: Sequence[float],
        expected: dict[str, list[float]],
        *,
        chain: bool,
    ) -> list[float]:
        """Returns the expected probabilities of being on the target's path of the nodes that a drafter proposes next.

        ends: probabilities of the nodes that they may be added to, likeliest first. expected: by drafter, the
        probabilities of a node's next children, which are computed for its first sequence. chain: whether only one of
        the nodes can be verified.
        """
        parents, children = (1, 1) if chain else clock.expansion
        chances = expected.setdefault(source, [])
        while len(chances) < children:
            chances.append(self.models[source].expected(len(chances)))
        return [end * chance for end in ends[:parents] for chance in chances[:children]]
