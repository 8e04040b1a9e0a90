"""The editors that make a request's changes to the logits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from speculative_engine.logits.allowed_tokens import AllowedTokens
from speculative_engine.logits.bad_words import BadWords
from speculative_engine.logits.banned_tokens import BannedTokens
from speculative_engine.logits.logit_bias import LogitBias
from speculative_engine.logits.logit_changes import LogitChanges
from speculative_engine.logits.logit_editor import LogitEditor
from speculative_engine.logits.min_tokens import MinTokens
from speculative_engine.logits.penalties import Penalties


def editors_of(
    changes: LogitChanges, prompt: Sequence[int], output: Sequence[int], ends: Collection[int]
) -> tuple[LogitEditor, ...]:
    """For one sequence, in their order; only those that do something.

    output: what it has already. ends: tokens that end it.
    """
    editors: list[LogitEditor] = []
    if changes.repetition_penalty != 1 or changes.presence_penalty or changes.frequency_penalty:
        editors.append(Penalties(changes, prompt, output))
    if changes.logit_bias:
        editors.append(LogitBias(changes.logit_bias))
    if changes.allowed_token_ids:
        editors.append(AllowedTokens(changes.allowed_token_ids))
    banned = {*changes.banned_token_ids, *(word[0] for word in changes.bad_words if len(word) == 1)}
    if banned:
        editors.append(BannedTokens(banned))
    spelled = [word for word in changes.bad_words if len(word) > 1]
    if spelled:
        editors.append(BadWords(spelled, output))
    if changes.min_tokens > len(output) and ends:
        editors.append(MinTokens(changes.min_tokens, ends, len(output)))
    return tuple(editors)
