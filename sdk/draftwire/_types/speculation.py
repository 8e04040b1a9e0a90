"""What a request asks of speculation, and what speculation did for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Acceptance = Literal["coupled", "rejection", "typical", "threshold"]
"""How draft tokens are accepted. ``"coupled"``: where they are the target's own; no drafter changes the output.
``"rejection"``: speculative sampling; lossless with trusted drafters, but which tokens come out depends on them.
``"typical"`` and ``"threshold"``: also where the target finds them likely enough; not lossless."""

Preset = Literal["auto", "code", "json", "narrative"]
"""A threshold by what is written; ``"auto"`` takes the one that the prompt looks like."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """A request's own switches for speculation. With coupled acceptance, the default, none of them changes a token of
    the output. At temperature 0 all rules of acceptance are the same."""

    enabled: bool = True
    """False decodes plainly even when drafters are attached."""
    drafter: str | None = None
    """Name of the attached drafter to use; None lets the verifier choose."""
    max_draft_tokens: int | None = None
    """Most draft tokens verified in one step for this request; None leaves it to the verifier's planner."""
    acceptance: Acceptance | None = None
    """How draft tokens are accepted; None is ``"coupled"``, or ``"threshold"`` where a preset is given."""
    preset: Preset | None = None
    """For ``"threshold"``: its threshold by what is written; default: ``"auto"``, unless a threshold is given."""
    labels: Mapping[str, str] | None = None
    """Draft with drafters that carry all these labels, for example ``{"domain": "code"}``; plainly while none does."""
    drafters: int | Sequence[str] | None = None
    """Most drafters that draft for the request at once, at least 1, or the names of those to use, for example
    ``["local:ngram", "draft-1"]``; None leaves it to the verifier."""
    prediction: str | Sequence[int] | None = None
    """The output that is expected, as text or token ids, for example the text that the request asks to have edited. The
    verifier drafts from it where the output agrees with it; a wrong one costs nothing but the speed."""
    threshold: float | None = None
    """For ``"threshold"``: the least probability under the target, in (0, 1]."""
    posterior_threshold: float | None = None
    """For ``"typical"``: the most that is asked of a token's probability, in (0, 1]; default 0.09."""
    posterior_alpha: float | None = None
    """For ``"typical"``: what is asked of it is at most this times exp(-entropy), in (0, 1]; default 0.3."""
    dynamic_temperature: bool = False
    """Have drafters with a model draft the cooler the less sure they are; not for ``"coupled"``."""


@dataclass(frozen=True, slots=True)
class DrafterShare:
    """One drafter's share in a request."""

    name: str
    """The drafter's name in the pool."""
    draft_tokens: int
    """Draft tokens of this drafter that were verified."""
    accepted_tokens: int
    """Draft tokens of this drafter that were accepted."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens, in [0, 1]; 0.0 when nothing of this drafter was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation did for one request.

    When a broken request was resumed, the counts cover what was generated after the last resume: a verifier that is
    gone cannot report its own.
    """

    steps: int
    """Forward passes of the target that produced at least one token of this request."""
    tokens: int
    """Tokens produced in those steps."""
    draft_tokens: int
    """Draft tokens that were verified."""
    accepted_tokens: int
    """Draft tokens that were accepted."""
    stale_nodes: int
    """Proposed nodes that arrived too late to be of use."""
    drafters: list[DrafterShare]
    """The same counts by drafter."""
    hits: int = 0
    """Steps that began with what was drafted before the last verdict was known."""
    acceptance: Acceptance = "coupled"
    """The rule in effect: ``"coupled"`` also where another makes no difference, at temperature 0 and without
    speculation."""
    preset: Preset | None = None
    """The preset in effect; never ``"auto"``."""
    threshold: float | None = None
    """The threshold in effect, for ``"threshold"``."""
    posterior_threshold: float | None = None
    """In effect, for ``"typical"``."""
    posterior_alpha: float | None = None
    """In effect, for ``"typical"``."""
    lossless: bool = True
    """Whether the output is distributed as the target's alone."""
    drafts: int = 0
    """Steps that verified at least one draft token."""
    accepted_per_position: list[int] = field(default_factory=list)
    """Of the accepted draft tokens, how many were the first of their step, the second, and so on."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens, in [0, 1]; 0.0 when nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification, the bonus token included: 1.0 is plain decoding; 0.0 when there was no step."""
        return self.tokens / self.steps if self.steps else 0.0


NO_SPECULATION = SpeculationStats(0, 0, 0, 0, 0, [])
"""Of a request whose counts were not reported."""
