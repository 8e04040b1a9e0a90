"""One sequence in the verifying engine: its tokens, KV slots, token tree and drafters."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np

from speculative_engine.acceptance_rules.acceptance import COUPLED, Acceptance
from speculative_engine.acceptance_rules.choice import rule_of, sampling_of
from speculative_engine.drafter_timing import ProposalClock
from speculative_engine.kv_slots import SlotList
from speculative_engine.logit_editor import LogitEditor
from speculative_engine.proposal import ProposalReader
from speculative_engine.sampling_params import SamplingParams
from speculative_engine.token_tree import TokenTree


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What the engine is asked to generate."""

    sequence_id: int
    tokens: ListLike[int]
    """Prompt, followed by output that is known already (a resumed request)."""
    max_length: int
    """Most tokens of prompt and output together; larger than len(tokens)."""
    sampling: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end the sequence; empty to ignore them."""
    max_draft_tokens: int | None = None
    """Most draft tokens verified in one step; None leaves it to the planner."""
    acceptance: Acceptance = COUPLED
    """Which draft tokens are kept."""
    editors: tuple[LogitEditor, ...] = ()
    """What is done to the logits, in this order; of this sequence alone, since they follow its tokens."""
    report_rejected: bool = False
    """Whether outcomes tell the rejected draft tokens."""


class Sequence:
    """The engine's state of one sequence. `slots` holds the KV slots of the leading tokens that were computed."""

    def __init__(self, spec: SequenceSpec):
        self.spec = spec
        self.sampling = sampling_of(spec.acceptance, spec.sampling)
        """How the target's tokens are drawn."""
        self.rule = rule_of(spec.acceptance, self.sampling)
        """None for the coupled one."""
        self.tokens = list(spec.tokens)
        self.slots = SlotList()
        self.tree = TokenTree(len(self.tokens), self.tokens[-1])
        self.readers: dict[str, ProposalReader] = {}
        self.clocks: dict[str, ProposalClock] = {}
        """As `readers` by drafter, of those that are worth waiting for."""
        self.state_readers: set[str] = set()
        """Those of `readers` that draft from the target's last hidden state."""
        self.foreseen = False
        """The last committed token was drafted before its drafter knew it, so that what is below it survives."""
        self.step_alone = False
        """The next step verifies no nodes: the logits of the last one, which did, were bad."""

    @property
    def pending(self) -> int:
        """Committed tokens that have not been through the model; at least 1, the last one."""
        return len(self.tokens) - len(self.slots)

    @property
    def wants_draws(self) -> bool:
        """Whether drafters have to draw their tokens and say from what."""
        return self.spec.acceptance.draws and self.rule is not None

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.tokens)

    def give_up(self) -> np.ndarray:
        """Forget all KV slots and return them, int64. Tokens and tree stay: drafters hold the tree's mirror.

        What a drafter does while the sequence stands still says nothing of its pace, so its times start anew.
        """
        for clock in self.clocks.values():
            clock.restart()
        return self.slots.clear()

    def attach(self, reader: ProposalReader, clock: ProposalClock | None, *, hidden_states: bool = False) -> None:
        """Take proposals of the reader's drafter from now on; without a clock they are never waited for."""
        self.readers[reader.source] = reader
        (self.state_readers.add if hidden_states else self.state_readers.discard)(reader.source)
        if clock is not None:
            self.clocks[reader.source] = clock

    def detach(self, source: str) -> None:
        """Take no more proposals of a drafter; does nothing if none are taken."""
        self.readers.pop(source, None)
        self.state_readers.discard(source)
        self.clocks.pop(source, None)

    def commit(self, tokens: list[int]) -> None:
        """Append committed tokens and re-root the tree."""
        walked, _ = self.tree.commit(tokens)
        self.tokens.extend(tokens)
        for editor in self.spec.editors:
            editor.commit(tokens)
        self.foreseen = len(walked) == len(tokens)
