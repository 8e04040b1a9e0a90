"""A request of vLLM's, on either side of the adapter: what drafts were made of it, and what drafters are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service_runtime.observability.span import NO_SPAN, Span
from speculative_engine.acceptance.acceptance import COUPLED, Acceptance
from speculative_engine.planning.drafter_timing import ProposalClock
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.tree.proposal import ProposalReader
from speculative_engine.tree.token_tree import Node, TokenTree

_GREEDY = SamplingParams(temperature=0.0)
"""vLLM's noise is its own, and it takes a draft token for one that was drawn with certainty: the likeliest token is the
best guess whatever the request's temperature."""


@dataclass(frozen=True, slots=True)
class AdaptedOrder:
    """See SpeculationOrder. Which drafters draft for it is for the pool alone to say: vLLM's clients cannot."""

    request_id: str
    max_length: int
    sampling: SamplingParams = _GREEDY
    speculate: bool = True
    drafter_names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    drafters: int | None = None
    acceptance: Acceptance = COUPLED
    dynamic_temperature: bool = False


@dataclass(slots=True, eq=False)
class AdaptedRequest:
    """See SpeculatedRequest. Used in the event loop only."""

    sequence_id: int
    order: AdaptedOrder
    tokens: list[int]
    """Those that drafters were told of; vLLM's thread may know more."""
    finished: bool = False
    span: Span = NO_SPAN


class MirroredRequest:
    """A request as vLLM's thread knows it, with its token tree. Guarded by the mirror's lock."""

    def __init__(self, sequence_id: int, order: AdaptedOrder, tokens: list[int], now: float):
        """tokens: prompt and output so far, at least one."""
        self.sequence_id = sequence_id
        self.order = order
        self.tokens = tokens
        self.tree = TokenTree(len(tokens), tokens[-1])
        self.readers: dict[str, ProposalReader] = {}
        self.clocks: dict[str, ProposalClock] = {}
        self.offered: list[Node] = []
        """The chain that the last call of `propose` gave to vLLM."""
        self.verified = 0
        """How many of them its last step really verified."""
        self.stepped_at = now
        self.call = -1
        """Number of the last call of `propose` that it took part in."""
