"""A host engine's request on both sides of the adapter: the engine's thread, the drafter pool in the event loop, and
the news from the one for the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftwire_core.adapters.common.step_features import FeatureRows
from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel, observe_commit
from draftwire_core.engine.planning.drafter_timing import ProposalClock
from draftwire_core.engine.planning.pace import Pace
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal, ProposalError, ProposalReader
from draftwire_core.engine.tree.token_tree import Node, TokenTree
from draftwire_core.runtime.observability.span import NO_SPAN, Span

_GREEDY = SamplingParams(temperature=0.0)
"""Sampling parameters sent to drafters of a host engine that draws noise of its own, and treats a draft token as drawn
with certainty: the likeliest token is then the best guess at any temperature."""


@dataclass(frozen=True, slots=True)
class AdaptedOrder:
    """The fixed part of a request, as a SpeculationOrder. The pool alone chooses the drafters of the host engine's own
    clients; a verifier in front of the engine names them by `RequestOptions`."""

    request_id: str
    max_length: int
    sampling: SamplingParams = _GREEDY
    speculate: bool = True
    drafter_names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    drafters: int | None = None
    acceptance: Acceptance = COUPLED
    always_draft: bool = False
    dynamic_temperature: bool = False


@dataclass(slots=True, eq=False)
class AdaptedRequest:
    """A request in the drafter pool, as a SpeculatedRequest. Used in the event loop only."""

    sequence_id: int
    order: AdaptedOrder
    tokens: list[int]
    """Tokens that have been sent to drafters; the engine's thread may have more."""
    finished: bool = False
    span: Span = NO_SPAN


class MirroredRequest:
    """A request with its token tree, as of the engine's latest step. Guarded by the mirror's lock."""

    def __init__(self, sequence_id: int, order: AdaptedOrder, tokens: list[int], now: float):
        """tokens: prompt and output so far, at least one token."""
        self.sequence_id = sequence_id
        self.order = order
        self.tokens = tokens
        self.tree = TokenTree(len(tokens), tokens[-1])
        self.readers: dict[str, ProposalReader] = {}
        self.clocks: dict[str, ProposalClock] = {}
        self.offered: list[Node] = []
        """The nodes that the engine was last given to verify, parents before children."""
        self.verified = 0
        """Number of offered nodes that the engine's step verifies."""
        self.pace = Pace()
        self.stepped_at = now
        self.call = -1
        """Number of the last step that included the request."""

    def attach(self, reader: ProposalReader, clock: ProposalClock) -> None:
        """Starts reading the proposals of a drafter."""
        self.readers[reader.source], self.clocks[reader.source] = reader, clock

    def detach(self, source: str) -> None:
        """Stops reading the proposals of a drafter, if it drafts for the request. Its nodes stay in the tree."""
        self.readers.pop(source, None)
        self.clocks.pop(source, None)

    def merge(self, source: str, proposal: Proposal, now: float) -> int:
        """Merges a drafter's proposal into the tree, and returns how many of its nodes arrived too late. Detaches the
        drafter and raises ProposalError if the proposal is at fault."""
        reader = self.readers.get(source)
        if reader is None:
            return len(proposal.token_ids)
        try:
            stale = reader.merge(proposal, self.tree, self.tokens).stale
        except ProposalError:
            self.detach(source)
            raise
        self.clocks[source].arrived(proposal, now)
        return stale

    def continued_by(self, tokens: np.ndarray, *, away: bool) -> bool:
        """Returns whether all tokens of the request, int [length], continue the known ones; only the last known one is
        compared, unless the request was absent from a step."""
        known = self.tokens
        if len(tokens) < len(known):
            return False
        if away:
            return bool(np.array_equal(tokens[: len(known)], known))
        return bool(tokens[len(known) - 1] == known[-1])

    def fresh(self, length: int, tail: Sequence[int]) -> list[int] | None:
        """Returns the new tokens, none beyond `max_length`; None if the last tokens do not continue the known ones.

        length: number of tokens of prompt and output. tail: the last of them.
        """
        beyond = length - self.order.max_length
        if beyond > 0:
            length, tail = length - beyond, tail[: max(0, len(tail) - beyond)]
            if length == len(self.tokens):
                return []
        count = length - len(self.tokens)
        if not 0 <= count < len(tail) or tail[-1 - count] != self.tokens[-1]:
            return None
        return list(tail[-count:]) if count else []

    def advance(self, tokens: list[int], models: dict[str, AcceptanceModel], news: RequestNews, now: float) -> None:
        """Commits new tokens, and adds them to the news with the drafts that were verified. models: the calibrations of
        the drafters, which the outcome updates."""
        verified = self.offered[: self.verified]
        accepted = [node for node, token in zip(self.tree.walk(tokens), tokens, strict=False) if node in verified]
        news.tokens += tokens
        news.sources += [node.source for node in accepted] + [None] * (len(tokens) - len(accepted))
        for node in verified:
            news.drafted[node.source] = news.drafted.get(node.source, 0) + 1
        observe_commit(self.tree, tokens, models)
        self.tree.commit(tokens)
        self.tokens += tokens
        self.offered, self.verified = [], 0
        if not self.tree.size:
            for clock in self.clocks.values():
                clock.asked(len(self.tokens), now)


@dataclass(slots=True)
class RequestNews:
    """News of one request."""

    begun: AdaptedOrder | None = None
    """Order of a new request; None for a known one."""
    tokens: list[int] = field(default_factory=list)
    """All tokens of a new request; for a known one, the tokens committed since the last news."""
    sources: list[str | None] = field(default_factory=list)
    """Source of each committed token; None for the target's own tokens."""
    drafted: dict[str, int] = field(default_factory=dict)
    """Number of verified draft tokens by source."""
    features: list[FeatureRows] = field(default_factory=list)
    """Features of tokens, each piece of those that one step computed."""
    ended: bool = False


@dataclass(slots=True)
class StepNews:
    """News of all requests."""

    requests: dict[int, RequestNews] = field(default_factory=dict)
    prices: tuple[float, float] = (0.0, 0.0)
    """Seconds that the last step with new tokens would have taken without draft tokens, and the price of each of these,
    as in StepResult; 0 while they are not known."""

    def of(self, sequence_id: int) -> RequestNews:
        """Returns the news of one request, created if there is none."""
        return self.requests.setdefault(sequence_id, RequestNews())
