"""Speculation options and statistics of a request, and the gain at a verifier; acceptance rules by name and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from draftwire._types.from_message import From, numbers_of
from draftwire._types.option import Option, Range
from draftwire.v1.speculation_pb2 import AcceptanceRule

Acceptance = Literal["coupled", "rejection", "typical", "threshold"]
"""Acceptance rule for draft tokens. ``"coupled"`` accepts tokens equal to the target's own; drafters never change the
output. ``"rejection"`` is speculative sampling: lossless with trusted drafters, although the tokens depend on the
drafters. ``"typical"`` and ``"threshold"`` also accept tokens that the target finds likely enough; they are lossy."""

Planning = Literal["auto", "always"]
"""Number of draft tokens to verify: ``"auto"`` those that are expected to raise the tokens per second, ``"always"`` all
that arrive, up to the limits, whatever they are worth, for tests and comparisons."""

Preset = Literal["auto", "code", "json", "narrative"]
"""Threshold for a kind of text; ``"auto"`` chooses one by the look of the prompt."""

RULES: Mapping[Acceptance, AcceptanceRule] = numbers_of(Acceptance, AcceptanceRule.DESCRIPTOR)
RULE_NAMES = {number: name for name, number in RULES.items()}


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculation options of a request. With coupled acceptance, the default, none of them affects the output. At
    temperature 0 all acceptance rules are the same."""

    enabled: Annotated[
        bool, Option(flag="--no-speculation", help="Decode without speculation.", path="speculation.enabled")
    ] = True
    """False decodes without speculation even if drafters are attached."""
    drafter: Annotated[
        str | None,
        Option(
            many=True,
            help="Name of a drafter to use; may be repeated, then all of them draft at once.",
            path="speculation.drafter",
        ),
    ] = None
    """Name of the attached drafter to use; None lets the verifier choose."""
    max_draft_tokens: Annotated[
        int | None, Option(help="Most draft tokens per step.", path="speculation.max_draft_tokens")
    ] = None
    """Most draft tokens verified in one step for this request; None leaves it to the verifier's planner."""
    planning: Annotated[
        Planning | None,
        Option(
            help="Draft tokens to verify: auto, those that pay, or always, all that arrive.",
            path="speculation.planning",
        ),
    ] = None
    """Number of draft tokens to verify; None means ``"auto"``. ``"always"`` can be slower than plain decoding, and
    slows down requests that share its steps."""
    acceptance: Annotated[
        Acceptance | None,
        Option(
            help="Rule by which draft tokens are accepted: coupled, rejection, typical or threshold.",
            path="speculation.acceptance",
        ),
    ] = None
    """Acceptance rule; None means ``"coupled"``, or ``"threshold"`` if a preset is given."""
    preset: Annotated[
        Preset | None,
        Option(
            help="Kind of content that sets the threshold: auto, code, json or narrative.", path="speculation.preset"
        ),
    ] = None
    """For ``"threshold"``: the kind of text that sets the threshold; default ``"auto"`` unless a threshold is given."""
    labels: Annotated[
        Mapping[str, str] | None,
        Option(
            flag="--label",
            help="Label of drafters, for example domain=code; may be repeated.",
            path="speculation.labels",
        ),
    ] = None
    """Use only drafters with all these labels, for example ``{"domain": "code"}``; none at all if no drafter has
    them."""
    drafters: Annotated[
        int | Sequence[str] | None,
        Option(range=Range(least=1), help="Most drafters that draft at once.", path="speculation.drafters"),
    ] = None
    """Most drafters for the request at once, at least 1, or the names of the drafters to use, for example
    ``["local:ngram", "draft-1"]``; None leaves it to the verifier."""
    prediction: Annotated[
        str | Sequence[int] | None, Option(help="Expected output, to draft from.", path="speculation.prediction")
    ] = None
    """The expected output, as text or token ids, for example a text that the request asks to edit. The verifier drafts
    from it where the output agrees with it; a wrong prediction costs only speed."""
    threshold: Annotated[
        float | None,
        Option(help="Least probability under the target, for the rule threshold.", path="speculation.threshold"),
    ] = None
    """For ``"threshold"``: the least probability under the target, in (0, 1]."""
    posterior_threshold: Annotated[
        float | None,
        Option(help="Upper bound of the threshold of the rule typical.", path="speculation.posterior_threshold"),
    ] = None
    """For ``"typical"``: upper bound of the probability required of a token, in (0, 1]; default 0.09."""
    posterior_alpha: Annotated[
        float | None,
        Option(help="Entropy factor in the threshold of the rule typical.", path="speculation.posterior_alpha"),
    ] = None
    """For ``"typical"``: the required probability is at most this times exp(-entropy), in (0, 1]; default 0.3."""
    dynamic_temperature: Annotated[
        bool,
        Option(
            help="Let drafters lower their temperature where they are unsure.", path="speculation.dynamic_temperature"
        ),
    ] = False
    """Lower the temperature of model drafters as their confidence drops; not for ``"coupled"``."""


@dataclass(frozen=True, slots=True)
class DrafterShare:
    """One drafter's share in a request."""

    name: str
    """The drafter's name in the pool."""
    draft_tokens: int
    """Verified draft tokens of this drafter."""
    accepted_tokens: int
    """Accepted draft tokens of this drafter."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens, in [0, 1]; 0.0 if none of its tokens was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Speculation statistics of a request.

    For a resumed request the counts begin at the last resume, because a lost verifier cannot report its own.
    """

    steps: int
    """Forward passes of the target that produced at least one token of this request."""
    tokens: int
    """Tokens produced in those steps."""
    draft_tokens: int
    """Draft tokens verified."""
    accepted_tokens: int
    """Draft tokens accepted."""
    stale_nodes: int
    """Proposed nodes that arrived too late to be used."""
    drafters: list[DrafterShare]
    """Verified and accepted draft tokens by drafter."""
    hits: int = 0
    """Steps that began with nodes drafted before the last verdict was known."""
    acceptance: Acceptance = "coupled"
    """The acceptance rule in effect; ``"coupled"`` also if the rule makes no difference: at temperature 0 and
    without speculation."""
    preset: Preset | None = None
    """The preset in effect; never ``"auto"``."""
    threshold: float | None = None
    """The threshold in effect, for ``"threshold"``."""
    posterior_threshold: float | None = None
    """The posterior threshold in effect, for ``"typical"``."""
    posterior_alpha: float | None = None
    """The posterior alpha in effect, for ``"typical"``."""
    lossless: bool = True
    """Whether the output has the same distribution as the target's alone."""
    planning: Planning = "auto"
    """The planning in effect; ``"auto"`` without speculation."""
    drafts: int = 0
    """Steps that verified at least one draft token."""
    accepted_per_position: list[int] = field(default_factory=list)
    """Accepted draft tokens by their place in the step: the first, the second, and so on."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens, in [0, 1]; 0.0 if nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification, bonus token included. 1.0 is plain decoding; 0.0 if there was no step."""
        return self.tokens / self.steps if self.steps else 0.0


NO_SPECULATION = SpeculationStats(0, 0, 0, 0, 0, [])
"""Statistics of a request whose counts were not reported."""


@dataclass(frozen=True, slots=True)
class AcceptanceCount:
    """Counts of one acceptance rule since the verifier started."""

    rule: Acceptance
    """The rule."""
    requests: int
    """Requests started with this rule."""
    tokens: int
    """Tokens committed for these requests."""
    draft_tokens: int
    """Draft tokens verified for these requests."""
    accepted_tokens: int
    """Draft tokens accepted for these requests."""


@dataclass(frozen=True, slots=True)
class SpeculationGain:
    """Compares the time of steps with that of plain decoding, over the steps that decoded a request whose drafting the
    planner decides: one for which it is neither switched off nor forced. Counts only grow."""

    tokens: int
    """Tokens that these steps committed."""
    sequences: int
    """Sequences decoded, summed over these steps."""
    seconds: Annotated[float, From("time")]
    """Time of these steps, with drafting in the verifier and waiting for proposals."""
    plain_seconds: Annotated[float, From("plain_time")]
    """Estimated time of plain decoding of the same tokens."""

    def since(self, earlier: SpeculationGain) -> SpeculationGain:
        """Returns the counts since an earlier reading."""
        return SpeculationGain(
            self.tokens - earlier.tokens,
            self.sequences - earlier.sequences,
            self.seconds - earlier.seconds,
            self.plain_seconds - earlier.plain_seconds,
        )

    @property
    def tokens_per_sequence(self) -> float:
        """Average number of tokens committed per sequence and step; 0.0 before the first step."""
        return self.tokens / self.sequences if self.sequences else 0.0

    @property
    def speed_up(self) -> float:
        """Estimated speed over plain decoding; 1.0 before the first step."""
        return self.plain_seconds / self.seconds if self.seconds > 0 else 1.0
