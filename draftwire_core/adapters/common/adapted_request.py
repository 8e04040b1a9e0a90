"""A host engine's request on both sides of the adapter: the engine's thread, and the drafter pool in the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance
from draftwire_core.engine.planning.drafter_timing import ProposalClock
from draftwire_core.engine.planning.pace import Pace
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import Node, TokenTree
from draftwire_core.runtime.observability.span import NO_SPAN, Span

_GREEDY = SamplingParams(temperature=0.0)
"""Sampling parameters sent to drafters. Host engines draw their own noise and treat a draft token as drawn with
certainty, so the likeliest token is the best guess at any temperature."""


@dataclass(frozen=True, slots=True)
class AdaptedOrder:
    """The fixed part of a request, as a SpeculationOrder. The pool alone chooses its drafters; the host engine's
    clients cannot."""

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
