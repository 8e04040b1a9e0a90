"""A mirror of the host engine's requests with their token trees, shared by two threads: the engine's thread commits
tokens, the event loop's thread merges proposals."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np

from draftwire_core.adapters.common.adapted_request import AdaptedOrder, MirroredRequest, StepNews
from draftwire_core.adapters.common.draft_tree import DraftTree, best_chain
from draftwire_core.adapters.common.learned_cost import LearnedCost
from draftwire_core.adapters.common.step_features import FeatureRows
from draftwire_core.engine.planning.drafter_timing import ProposalClock
from draftwire_core.engine.planning.planner import Candidate, Planner
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import ProposalError, ProposalReader
from draftwire_core.pool.drafter.proposal_sink import ProposalSink, RefusedProposal, SequenceProposal

_MOST_ROWS = 1 << 20
"""Limit of the planner on rows per step; effectively none, since host engines bound their steps themselves."""


class BatchMirror(ProposalSink):
    """The host engine's requests and their token trees. One lock guards everything; it is never held during a model's
    computation or a message's transfer.

    `begin`, `verify`, `advance`, `commit`, `computed`, `chains`, `trees`, `end` and `keep` are called in the engine's
    thread, the methods of ProposalSink, `sources` and `fetch` in the event loop, `expire` in either.
    """

    def __init__(
        self,
        *,
        most: int,
        max_tree_nodes: int,
        vocab_size: int,
        fixed_rows: bool = False,
        on_news: Callable[[], None],
        on_fault: Callable[[RefusedProposal], None],
        on_forget: Callable[[str], None] | None = None,
    ):
        """most: maximum draft tokens per request and step. fixed_rows: whether the host engine verifies that many
        whatever is proposed, so that a further draft token costs nothing. on_news: called, with the lock held, when
        there is something to fetch and there was nothing before. on_fault: called in the event loop for each refused
        proposal. on_forget: called in the event loop with each source that is forgotten."""
        self.planner = Planner(LearnedCost().curve, _MOST_ROWS)
        self.cost = LearnedCost()
        self._stale: Counter[str] = Counter()
        self._most = most
        self._max_tree_nodes = max_tree_nodes
        self._vocab_size = vocab_size
        self._fixed_rows = fixed_rows
        self._on_news = on_news
        self._on_fault = on_fault
        self._on_forget = on_forget
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._by_id: dict[str, MirroredRequest] = {}
        self._by_number: dict[int, MirroredRequest] = {}
        self._news = StepNews()
        self._prices = (0.0, 0.0)
        self._told = True
        """Whether all news has been fetched, so that the next news needs a call of `on_news`."""

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self._by_id)

    # The engine's thread

    def begin(self, order: AdaptedOrder, tokens: Sequence[int]) -> None:
        """Begins a request, or restarts it, so that drafters read its tokens while the target does."""
        with self._changed:
            self._drop(order.request_id)
            self._add(order, list(tokens), time.perf_counter())

    def verify(self, verified: Mapping[str, int]) -> None:
        """Records how many draft tokens of each request the coming step verifies; 0 for requests not in `verified`."""
        with self._changed:
            for request_id, mirrored in self._by_id.items():
                mirrored.verified = min(verified.get(request_id, 0), len(mirrored.offered))

    def end(self, request_ids: Iterable[str]) -> None:
        """Drops requests that have ended."""
        with self._changed:
            for request_id in request_ids:
                self._drop(request_id)

    def keep(self, request_ids: Container[str]) -> None:
        """Drops all requests but these."""
        with self._changed:
            for request_id in [each for each in self._by_id if each not in request_ids]:
                self._drop(request_id)

    def expire(self, idle_seconds: float) -> int:
        """Drops requests that have not been part of any step for `idle_seconds`. Returns their number."""
        limit = time.perf_counter() - idle_seconds
        with self._changed:
            idle = [request_id for request_id, each in self._by_id.items() if each.stepped_at < limit]
            for request_id in idle:
                self._drop(request_id)
        return len(idle)

    def advance(self, request_id: str, length: int, tail: Sequence[int]) -> bool:
        """Updates a request by its last tokens, as `commit` does. Returns False, and changes nothing, if they do not
        continue the known ones; `commit` finds out then.

        length: number of tokens of prompt and output. tail: the last of them.
        """
        now = time.perf_counter()
        with self._changed:
            mirrored = self._by_id.get(request_id)
            if mirrored is None:
                return False
            fresh = mirrored.fresh(length, tail)
            if fresh is None:
                return False
            if fresh:
                self._advance(mirrored, fresh, now)
            mirrored.stepped_at = now
        return True

    def commit(self, call: int | None, request_id: str, tokens: np.ndarray, order: Callable[[], AdaptedOrder]) -> None:
        """Updates a request to its current tokens.

        call: number of the step; None if steps are not counted. tokens: the whole prompt and output, int
        [length], at least one token. order: makes the order of a request that is not known yet.

        A request that was absent for some steps, for example after a preemption, is compared in full, and so is every
        request if steps are not counted. If the tokens do not continue the known ones, the request is restarted.
        Tokens beyond the order's `max_length` are left out: the host engine may compute a step before it knows that a
        request has ended.
        """
        now = time.perf_counter()
        with self._changed:
            mirrored = self._by_id.get(request_id)
            away = mirrored is not None and (call is None or mirrored.call != call - 1)
            if mirrored is not None and not mirrored.continued_by(tokens, away=away):
                self._drop(request_id)
                mirrored = None
            if mirrored is None:
                begun = order()
                mirrored = self._add(begun, tokens[: begun.max_length].tolist(), now)
            else:
                fresh = tokens[len(mirrored.tokens) : mirrored.order.max_length]
                if len(fresh):
                    self._advance(mirrored, fresh.tolist(), now)
            mirrored.call = -1 if call is None else call
            mirrored.stepped_at = now

    def computed(self, request_id: str, rows: FeatureRows) -> None:
        """Records the features of a request's tokens, as a step has computed them. To be called after `advance`."""
        with self._changed:
            mirrored = self._by_id.get(request_id)
            if mirrored is not None:
                self._news.of(mirrored.sequence_id).features.append(rows)
                self._tell()

    def chains(self, request_ids: Sequence[str], prompts: int, deadline: float) -> list[list[int]]:
        """Returns the draft tokens for the next step to verify, one chain per request. Waits for drafters while that is
        worthwhile, at most until the deadline (time.perf_counter).

        prompts: number of requests in the batch whose prompts are not computed yet.
        """
        return [tree.tokens for tree in self.trees(request_ids, prompts, deadline, chains=True)]

    def trees(
        self, request_ids: Sequence[str], prompts: int, deadline: float, *, chains: bool = False
    ) -> list[DraftTree]:
        """Returns the draft tokens for the next step to verify, one tree per request, and waits as `chains` does.

        chains: whether each tree may only be a chain.
        """
        with self._changed:
            asked = [self._by_id[request_id] for request_id in request_ids]
            self.planner.cost = self._cost(len(asked) + prompts)
            began = time.perf_counter()
            while True:
                candidates = [self._candidate(mirrored, chains=chains) for mirrored in asked]
                plan = self.planner.plan(candidates, prompts, prompts=prompts)
                now = time.perf_counter()
                wait = min(self.planner.worthwhile_wait(plan, candidates, now), deadline - now)
                if wait <= 0:
                    break
                self._changed.wait(wait)
            due = 0.0
            if asked:
                due, offered = self.planner.due(plan, now - began), sum(map(len, plan.nodes))
                rows = len(asked) + prompts + offered
                self._prices = plan.plain_seconds, self.planner.cost.node_tokens(rows, offered, len(asked))
            for mirrored, nodes, expected in zip(asked, plan.nodes, plan.expected, strict=True):
                mirrored.offered = nodes
                mirrored.pace.settle(expected, due)
            return [DraftTree.of(nodes) for nodes in plan.nodes]

    def _cost(self, requests: int) -> StepCost:
        """The cost of the next step, of so many requests, by its number of rows."""
        if not self._fixed_rows:
            return self.cost.curve
        return StepCost([1], [self.cost.curve.seconds(max(1, requests * (1 + self._most)))])

    def _candidate(self, mirrored: MirroredRequest, *, chains: bool) -> Candidate:
        allows = None
        if chains:
            chain = {id(node) for node in best_chain(mirrored.tree, self.planner.models, self._most)}
            allows = lambda node: id(node) in chain  # noqa: E731
        return Candidate(
            mirrored.tree,
            mirrored.clocks,
            max_nodes=self._most,
            # The token that follows an accepted one needs a position, too.
            max_position=mirrored.order.max_length - 2,
            always_draft=mirrored.order.always_draft,
            allows=allows,
            chain=chains,
            pace=mirrored.pace,
        )

    def _add(self, order: AdaptedOrder, tokens: list[int], now: float) -> MirroredRequest:
        mirrored = MirroredRequest(next(self._numbers), order, tokens, now)
        self._by_id[order.request_id] = self._by_number[mirrored.sequence_id] = mirrored
        news = self._news.of(mirrored.sequence_id)
        news.begun, news.tokens = order, list(tokens)
        self._tell()
        return mirrored

    def _drop(self, request_id: str) -> None:
        mirrored = self._by_id.pop(request_id, None)
        if mirrored is not None:
            del self._by_number[mirrored.sequence_id]
            self._news.of(mirrored.sequence_id).ended = True
            self._tell()

    def _advance(self, mirrored: MirroredRequest, tokens: list[int], now: float) -> None:
        mirrored.advance(tokens, self.planner.models, self._news.of(mirrored.sequence_id), now)
        self._news.prices = self._prices
        self._tell()

    def _tell(self) -> None:
        if self._told:
            self._told = False
            self._on_news()

    # The event loop

    def fetch(self) -> StepNews:
        """Returns the news since the last call."""
        with self._changed:
            news, self._news = self._news, StepNews()
            self._told = True
        return news

    def take_stale(self) -> Counter[str]:
        """Returns the number of nodes by source that arrived too late since the last call."""
        with self._changed:
            stale, self._stale = self._stale, Counter()
        return stale

    def sources(self, sequence_id: int) -> list[str]:
        """Returns the drafters that draft for a sequence."""
        with self._changed:
            mirrored = self._by_number.get(sequence_id)
            return [] if mirrored is None else list(mirrored.readers)

    def attach(self, sequence_id: int, source: str, *, hidden_states: bool = False) -> None:
        """Starts taking a drafter's proposals for a sequence. No host engine's verdicts carry hidden states."""
        with self._changed:
            mirrored = self._by_number.get(sequence_id)
            if mirrored is not None:
                self.planner.add_source(source)
                reader = ProposalReader(source, self._max_tree_nodes, self._vocab_size)
                clock = ProposalClock(self.planner.timings[source], always=mirrored.order.always_draft)
                mirrored.attach(reader, clock)

    def detach(self, sequence_id: int, source: str) -> None:
        """Stops taking a drafter's proposals for a sequence. Its nodes stay in the tree."""
        with self._changed:
            mirrored = self._by_number.get(sequence_id)
            if mirrored is not None:
                mirrored.detach(source)
            self._changed.notify_all()  # `chains` may be waiting for the drafter

    def forget(self, source: str) -> None:
        """Stops taking a drafter's proposals for all sequences, and drops its statistics."""
        with self._changed:
            self.planner.remove_source(source)
            for mirrored in self._by_id.values():
                mirrored.detach(source)
            self._changed.notify_all()
        if self._on_forget is not None:
            self._on_forget(source)

    def pause(self, source: str, *, paused: bool) -> None:
        """Stops waiting for the proposals of a drafter that is paused, or waits for them again."""
        with self._changed:
            timing = self.planner.timings.get(source)
            if timing is not None:
                timing.paused = paused

    def propose(self, source: str, proposals: Sequence[SequenceProposal]) -> None:
        """Merges proposals into the trees, and reports faulty ones to `on_fault`."""
        now = time.perf_counter()
        faults = []
        with self._changed:
            for each in proposals:
                mirrored = self._by_number.get(each.sequence_id)
                if mirrored is None:
                    self._stale[source] += len(each.proposal.token_ids)
                    continue
                try:
                    self._stale[source] += mirrored.merge(source, each.proposal, now)
                except ProposalError as error:
                    faults.append(RefusedProposal(each.sequence_id, each.epoch, source, error))
            self._changed.notify_all()
        for fault in faults:
            self._on_fault(fault)

    def response_seconds(self, source: str) -> float | None:
        """Returns the smoothed time in seconds from a verdict to a drafter's first answer; None while unknown."""
        timing = self.planner.timings.get(source)
        return None if timing is None else timing.response
