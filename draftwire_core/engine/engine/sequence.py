"""One sequence in the verification engine: its tokens, KV slots, token tree and drafters."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np

from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance, rule_of, sampling_of
from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.step_result import Finish
from draftwire_core.engine.kv.kv_slots import SlotList, SlotPool
from draftwire_core.engine.kv.prefix_cache import PrefixCache
from draftwire_core.engine.kv.recurrent_states import KEPT_EVERY, SequenceState
from draftwire_core.engine.kv.shared_prefix import SharedPrefix
from draftwire_core.engine.logits.logit_editor import LogitEditor
from draftwire_core.engine.logits.output_form import OutputForm, allowed_nodes
from draftwire_core.engine.planning.drafter_timing import ProposalClock
from draftwire_core.engine.planning.pace import Pace
from draftwire_core.engine.planning.planner import Candidate
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A sequence to generate: its prompt, parameters and limits."""

    sequence_id: int
    tokens: ListLike[int]
    """The prompt, followed by output that is already known (a resumed request)."""
    max_length: int
    """Most tokens of prompt and output together; larger than len(tokens)."""
    sampling: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end the sequence; empty to ignore them."""
    max_draft_tokens: int | None = None
    """Most draft tokens verified in one step; None leaves the number to the planner."""
    always_draft: bool = False
    """Whether its draft tokens are verified whatever they are worth, and paused drafters draft for it as well."""
    acceptance: Acceptance = COUPLED
    """Decides which draft tokens are kept."""
    editors: tuple[LogitEditor, ...] = ()
    """Edits applied to the logits, in this order. They track this sequence's tokens, so no other sequence may use
    them."""
    logprobs: int | None = None
    """How many of the likeliest tokens to report log-probabilities for at each output position, besides the token's
    own; None reports none."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for the positions of `tokens`; the prompt is then always computed in full."""
    takes_prefix: bool = True
    """Whether its leading tokens may come from the prefix cache, in which case their logits are never computed."""
    leaves_prefix: bool = True
    """Whether its tokens may be stored in the prefix cache."""
    form: OutputForm | None = None
    """The form the output must have; also one of the editors."""
    report_rejected: bool = False
    """Whether outcomes list the rejected draft tokens."""
    private: bool = False
    """Whether its tokens are kept from other requests' drafts."""
    likeliest: bool = False
    """Whether outcomes have the likeliest tokens at each output position, for training."""

    def prefix_in(self, cache: PrefixCache | None) -> SharedPrefix | None:
        """Returns the sequence's share of a prefix cache; None if it does not use one."""
        takes = self.takes_prefix and self.prompt_logprobs is None  # prompt log-probabilities need all logits computed
        if cache is None or not (takes or self.leaves_prefix):
            return None
        return SharedPrefix(cache, takes=takes, leaves=self.leaves_prefix)


class Sequence:
    """The engine's state of one sequence. `slots` holds the KV slots of its computed leading tokens."""

    def __init__(self, spec: SequenceSpec, prefix: SharedPrefix | None = None):
        """prefix: its share of the prefix cache; None if it does not use one."""
        self.spec = spec
        self.prefix = prefix
        self.sampling = sampling_of(spec.acceptance, spec.sampling)
        """Parameters with which the target draws tokens."""
        self.rule = rule_of(spec.acceptance, self.sampling)
        """Decides which draft tokens are accepted."""
        self.tokens = list(spec.tokens)
        self.slots = SlotList()
        self.state = SequenceState()
        """Of recurrent layers, if the model has any; after leading tokens that have slots."""
        self.tree = TokenTree(len(self.tokens), self.tokens[-1])
        self.readers: dict[str, ProposalReader] = {}
        self.clocks: dict[str, ProposalClock] = {}
        """Clocks of those drafters in `readers` that are worth waiting for, by drafter."""
        self.state_readers: set[str] = set()
        """The drafters in `readers` that draft from the target's last hidden state."""
        self.pace = Pace()
        self.foreseen = False
        """Whether the last committed token was drafted before its drafter knew it, so that the nodes below it
        survive."""
        self.step_alone = False
        """Whether the next step verifies no nodes, because the logits of the last one, which did, were bad."""
        self.told = 1
        """Number of leading tokens with their prompt log-probabilities already reported; the first token has none."""
        self.sound = False
        """Whether its last logits were finite numbers, and its keys and values therefore valid."""
        self.began: float | None = None
        """Start of the first step that computed a part of it, by time.perf_counter."""
        self.cached_tokens = 0
        """Number of leading tokens that came from the prefix cache before the first commit."""

    @property
    def pending(self) -> int:
        """Number of committed tokens that have not been through the model; at least 1, the last one."""
        return len(self.tokens) - self.slots.length

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return len(self.tokens)

    def candidate(self, max_tree_nodes: int) -> Candidate:
        """Returns the sequence as the planner sees it. max_tree_nodes: most nodes verified for it in a step."""
        most = 0 if self.step_alone else self.spec.max_draft_tokens
        return Candidate(
            tree=self.tree,
            clocks=self.clocks,
            max_nodes=max_tree_nodes if most is None else min(most, max_tree_nodes),
            # The last token of a sequence needs no node: its parent's row already yields it.
            max_position=self.spec.max_length - 2,
            always_draft=self.spec.always_draft,
            pace=self.pace,
            allows=allowed_nodes(self.spec.form, self.tree) if self.spec.form is not None else None,
        )

    def take_up(self, pool: SlotPool) -> None:
        """Takes matching slots from the prefix cache, replacing those the sequence computed itself."""
        if self.prefix is not None:
            pool.give_back(self.prefix.take(self.tokens, self.slots, self.state))
            if not self.sound:
                self.cached_tokens = self.prefix.hits

    def leave(self) -> None:
        """Stores its computed tokens in the prefix cache."""
        if self.prefix is not None:
            self.prefix.leave(self.tokens, self.slots, self.state)

    def kept_positions(self, start: int, end: int) -> tuple[int, ...]:
        """Returns the positions in a chunk of its prompt, above `start` and at most `end`, after which the prefix cache
        keeps states."""
        if self.prefix is None or not self.prefix.leaves or end - start < 2:
            return ()
        last = len(self.tokens) - 1  # where the same prompt would go on from
        return (
            *range(-(-(start + 1) // KEPT_EVERY) * KEPT_EVERY, end + 1, KEPT_EVERY),
            *((last,) if end >= last else ()),
        )

    def kept_length(self, length: int) -> int:
        """Returns how many of its `length` leading tokens others can read once its prompt is computed."""
        if self.prefix is None or not self.prefix.needs_states or length >= len(self.tokens) - 1:
            return length
        return length // KEPT_EVERY * KEPT_EVERY

    def settle(self, *, sound: bool) -> None:
        """Records whether its last logits were valid; the first valid ones count the prefix cache's hits."""
        if sound and not self.sound and self.prefix is not None:
            self.prefix.count(len(self.spec.tokens))
        self.sound = sound

    def give_up(self) -> np.ndarray:
        """Releases all KV slots; returns the sequence's own, int64, while the prefix cache keeps the shared ones.

        Tokens and tree stay, since drafters mirror the tree. The drafters' clocks restart: what a drafter does while
        the sequence is stopped says nothing about its pace.
        """
        for clock in self.clocks.values():
            clock.restart()
        if self.prefix is not None and self.sound:
            self.leave()
        slots = self.slots.clear() if self.prefix is None else self.prefix.give_up(self.slots, self.state)
        self.state.release()
        return slots

    def attach(self, reader: ProposalReader, clock: ProposalClock | None, *, hidden_states: bool = False) -> None:
        """Accepts proposals of the reader's drafter from now on; without a clock they are never waited for."""
        self.readers[reader.source] = reader
        (self.state_readers.add if hidden_states else self.state_readers.discard)(reader.source)
        if clock is not None:
            self.clocks[reader.source] = clock

    def detach(self, source: str) -> None:
        """Stops accepting proposals of a drafter; does nothing if it is not attached."""
        self.readers.pop(source, None)
        self.state_readers.discard(source)
        self.clocks.pop(source, None)

    def commit(self, tokens: list[int]) -> None:
        """Appends committed tokens and re-roots the tree."""
        walked, _ = self.tree.commit(tokens)
        self.tokens += tokens
        for editor in self.spec.editors:
            editor.commit(tokens)
        self.foreseen = len(walked) == len(tokens)

    def end_after(self, tokens: list[int], rows: AskedRows) -> tuple[list[int], Finish | None]:
        """Returns the tokens to commit and why the sequence ends with the last of them, or None if it continues.

        tokens: the drawn tokens, -1 where none could be drawn. rows: the sequence's own; the first one follows the
        committed tokens.
        """
        spec = self.spec
        if -1 in tokens:
            return [], Finish.NOTHING_ALLOWED if bool(rows.raw[0].max().isfinite()) else Finish.FAULT
        # Checked first: rows beyond the form's end are meaningless.
        end = spec.form.ends_after(tokens) if spec.form is not None else None
        finish = None
        if end is not None:
            finish, tokens = Finish.FORM, tokens[:end]
        for index, token in enumerate(tokens):
            if token in spec.eos_token_ids:
                return tokens[: index + 1], Finish.EOS
        if finish is None and self.length + len(tokens) >= spec.max_length:
            return tokens[: spec.max_length - self.length], Finish.LENGTH
        return tokens, finish
