"""What a request asks of speculation, and what speculation did for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Acceptance = Literal["coupled", "rejection", "typical", "threshold"]
"""How draft tokens are accepted. Verifiers serve ``"coupled"``, the lossless rule, today."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """A request's own switches for speculation. With coupled acceptance none of them changes a token of the output."""

    enabled: bool = True
    """False decodes plainly even when drafters are attached."""
    drafter: str | None = None
    """Name of the attached drafter to use; None lets the verifier choose."""
    max_draft_tokens: int | None = None
    """Most draft tokens verified in one step for this request; None leaves it to the verifier's planner."""
    acceptance: Acceptance = "coupled"
    """How draft tokens are accepted."""
    preset: str | None = None
    """Name of a workload preset; none is published yet."""
    labels: Mapping[str, str] | None = None
    """Draft with drafters that carry all these labels, for example ``{"domain": "code"}``; plainly while none does."""
    drafters: int | Sequence[str] | None = None
    """Most drafters that draft for the request at once, at least 1, or the names of those to use, for example
    ``["local:ngram", "draft-1"]``; None leaves it to the verifier."""
    prediction: str | Sequence[int] | None = None
    """The output that is expected, as text or token ids, for example the text that the request asks to have edited. The
    verifier drafts from it where the output agrees with it; a wrong one costs nothing but the speed."""


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

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens, in [0, 1]; 0.0 when nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification, the bonus token included: 1.0 is plain decoding; 0.0 when there was no step."""
        return self.tokens / self.steps if self.steps else 0.0
