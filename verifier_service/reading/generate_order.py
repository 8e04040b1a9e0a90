"""A checked request, as the verifier runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftwire.v1.speculation_pb2 import AcceptancePreset
from draftwire_core.engine.acceptance.acceptance import Acceptance
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.logits.logit_changes import NO_CHANGES, LogitChanges
from draftwire_core.engine.sampling.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerateOrder:
    """A checked request: the sequence for the engine, and the options that the service handles."""

    request_id: str
    spec: SequenceSpec
    """The engine's part: tokens, sampling, acceptance rule, limits and logit changes."""
    prompt_length: int
    """Number of leading tokens of the sequence that are the prompt; the caller has the others already."""
    prompt_was_text: bool
    stops: tuple[str, ...]
    """Strings that end the output."""
    speculate: bool
    """Whether any drafter drafts for the request."""
    is_answer: bool = False
    """Whether the output is an answer in a conversation, a text of its own; if not, it goes on from the prompt's."""
    drafter_names: tuple[str, ...] = ()
    """The only drafters for the request, all of which draft; if empty, the pool chooses."""
    resumable: bool = False
    """Whether the caller can continue at another verifier."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that its drafters must carry."""
    drafters: int | None = None
    """Number of drafters that draft at once; None uses the verifier's setting."""
    prediction: list[int] = field(default_factory=list)
    """Tokens of the output that the caller expects."""
    preset: AcceptancePreset = AcceptancePreset.ACCEPTANCE_PRESET_UNSPECIFIED
    """The preset that the rule's threshold comes from."""
    dynamic_temperature: bool = False
    """Whether drafters lower their temperature where they are unsure."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the output, whether or not end-of-sequence tokens do."""
    include_stop: bool = False
    """Whether the text keeps the stop string or token that ended the output."""
    special_tokens: bool = False
    """Whether the text keeps special tokens."""
    changes: LogitChanges = NO_CHANGES
    """The logit changes that the sequence's editors make."""
    max_time: float | None = None
    """Seconds after which the request ends with the output so far."""
    echo: bool = False
    """Whether to report the prompt's text."""
    jump_ahead: bool = False
    """Whether tokens that the output form determines are drafted."""
    left_out: tuple[str, ...] = ()
    """Places of the parts of the output form that are not enforced."""

    @property
    def prompt(self) -> list[int]:
        """The prompt's tokens."""
        return list(self.spec.tokens[: self.prompt_length])

    @property
    def resumed(self) -> list[int]:
        """Output tokens that the caller already has."""
        return list(self.spec.tokens[self.prompt_length :])

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters of the request."""
        return self.spec.sampling

    @property
    def private(self) -> bool:
        """Whether its text is kept from other callers and from training."""
        return self.spec.private

    @property
    def always_draft(self) -> bool:
        """Whether its draft tokens are verified whatever they are worth."""
        return self.spec.always_draft

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and output together."""
        return self.spec.max_length

    @property
    def acceptance(self) -> Acceptance:
        """The acceptance rule in effect."""
        return self.spec.acceptance
