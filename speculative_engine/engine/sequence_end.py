"""Whether a sequence ends with what a step drew for it, and where."""

from __future__ import annotations

import torch

from speculative_engine.engine.edited_logits import why_no_token
from speculative_engine.engine.sequence import Sequence
from speculative_engine.engine.step_result import Finish


def end_of(sequence: Sequence, tokens: list[int], raw: torch.Tensor) -> tuple[list[int], Finish | None]:
    """The tokens to commit, and why the sequence ends with the last of them, None if it does not.

    tokens: what was drawn, -1 where none could be. raw [V]: the target's own logits behind the committed tokens.
    """
    spec = sequence.spec
    if -1 in tokens:
        return [], why_no_token(raw)
    # Before all else: behind the form's end a row may say anything.
    end = spec.form.ends_after(tokens) if spec.form is not None else None
    finish = None
    if end is not None:
        finish, tokens = Finish.FORM, tokens[:end]
    for index, token in enumerate(tokens):
        if token in spec.eos_token_ids:
            return tokens[: index + 1], Finish.EOS
    if finish is None and sequence.length + len(tokens) >= spec.max_length:
        return tokens[: spec.max_length - sequence.length], Finish.LENGTH
    return tokens, finish
