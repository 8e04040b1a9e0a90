"""One sequence in the verifying engine: its tokens, KV slots, token tree and drafters."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from speculative_engine.acceptance.acceptance import COUPLED, Acceptance, rule_of, sampling_of
from speculative_engine.engine.step_result import Finish
from speculative_engine.kv.kv_slots import SlotList, SlotPool
from speculative_engine.kv.prefix_cache import PrefixCache
from speculative_engine.kv.shared_prefix import SharedPrefix
from speculative_engine.logits.logit_editor import LogitEditor
from speculative_engine.logits.output_form import OutputForm, allowed_nodes
from speculative_engine.planning.drafter_timing import ProposalClock
from speculative_engine.planning.planner import Candidate
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.tree.proposal import ProposalReader
from speculative_engine.tree.token_tree import TokenTree


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
    logprobs: int | None = None
    """Of how many of the likeliest tokens at each position of the output to tell the log-probabilities, beside the
    token's own; None tells none."""
    prompt_logprobs: int | None = None
    """The same for `tokens`, all of which are then computed."""
    takes_prefix: bool = True
    """Whether its first tokens may come from the prefix cache, and their logits are never computed."""
    leaves_prefix: bool = True
    """Whether its tokens may go into the prefix cache."""
    form: OutputForm | None = None
    """What the output has to be; one of the editors, too."""
    report_rejected: bool = False
    """Whether outcomes tell the rejected draft tokens."""

    def prefix_in(self, cache: PrefixCache | None) -> SharedPrefix | None:
        """Returns the sequence's part in a prefix cache; None if it has none."""
        takes = self.takes_prefix and self.prompt_logprobs is None  # whose logits have to be computed
        if cache is None or not (takes or self.leaves_prefix):
            return None
        return SharedPrefix(cache, takes=takes, leaves=self.leaves_prefix)


class Sequence:
    """The engine's state of one sequence. `slots` holds the KV slots of the leading tokens that were computed."""

    def __init__(self, spec: SequenceSpec, prefix: SharedPrefix | None = None):
        """prefix: its part in the prefix cache; None for none."""
        self.spec = spec
        self.prefix = prefix
        self.sampling = sampling_of(spec.acceptance, spec.sampling)
        """How the target's tokens are drawn."""
        self.rule = rule_of(spec.acceptance, self.sampling)
        """Decides which draft tokens are accepted."""
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
        self.told = 1
        """Tokens of the spec whose log-probabilities are told, where they are wanted; before the first is nothing."""
        self.sound = False
        """Its last logits were numbers, so its keys and values are."""
        self.began: float | None = None
        """When the first step that computed something of it began, by time.perf_counter."""
        self.cached_tokens = 0
        """Leading tokens that came from the prefix cache before it had committed any."""

    @property
    def pending(self) -> int:
        """Committed tokens that have not been through the model; at least 1, the last one."""
        return len(self.tokens) - len(self.slots)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.tokens)

    def candidate(self, max_tree_nodes: int) -> Candidate:
        """Returns what the planner sees of the sequence. max_tree_nodes: most nodes verified for it in a step."""
        most = 0 if self.step_alone else self.spec.max_draft_tokens
        return Candidate(
            tree=self.tree,
            clocks=self.clocks,
            max_nodes=max_tree_nodes if most is None else min(most, max_tree_nodes),
            # The last token of a sequence needs no node: its parent's row already tells it.
            max_position=self.spec.max_length - 2,
            allows=allowed_nodes(self.spec.form, self.tree) if self.spec.form is not None else None,
        )

    def take_up(self, pool: SlotPool) -> None:
        """Read from the prefix cache what is there, in the place of what it has computed itself."""
        if self.prefix is not None:
            pool.give_back(self.prefix.take(self.tokens, self.slots))
            if not self.sound:
                self.cached_tokens = self.prefix.hits

    def leave(self) -> None:
        """Leave what it has computed in the prefix cache."""
        if self.prefix is not None:
            self.prefix.leave(self.tokens, self.slots)

    def settle(self, *, sound: bool) -> None:
        """Note whether its last logits were numbers; at the first ones that are, count what the prefix cache had."""
        if sound and not self.sound and self.prefix is not None:
            self.prefix.count(len(self.spec.tokens))
        self.sound = sound

    def give_up(self) -> np.ndarray:
        """Forget all KV slots and return its own, int64; the prefix cache keeps the others. Tokens and tree stay:
        drafters hold the tree's mirror.

        What a drafter does while the sequence stands still says nothing of its pace, so its times start anew.
        """
        for clock in self.clocks.values():
            clock.restart()
        if self.prefix is None:
            return self.slots.clear()
        if self.sound:
            self.leave()
        return self.prefix.give_up(self.slots)

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

    def end_after(self, tokens: list[int], raw: Tensor) -> tuple[list[int], Finish | None]:
        """The tokens to commit, and why the sequence ends with the last of them, None if it does not.

        tokens: what was drawn, -1 where none could be. raw [V]: the target's own logits behind the committed tokens.
        """
        spec = self.spec
        if -1 in tokens:
            return [], Finish.NOTHING_ALLOWED if bool(raw.max().isfinite()) else Finish.FAULT
        # Before all else: behind the form's end a row may say anything.
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
