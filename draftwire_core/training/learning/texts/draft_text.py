"""A served text as the draft model reads it, and the windows that it is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translated_draft import TranslatedDraft
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.training.data.example import Example, Ids

_UNBOUNDED = ContextWindow(1 << 30, 1 << 30)
"""A window that no text fills: texts are cut into windows once they are read."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftText:
    """A text in the draft model's tokens."""

    tokens: Ids
    """The text, prompt and output."""
    first: int
    """Position of the output's first token, at least 1."""

    @property
    def positions(self) -> int:
        """Tokens of the output, which are learned."""
        return len(self.tokens) - self.first

    def windows(self, size: int) -> Iterator[Example]:
        """Yields windows of up to `size` tokens, at least 2, in which each token of the output is learned once.

        A window that does not begin with the text begins with the first token of the text: in many models it marks the
        beginning, as in the windows that a drafter reads (`ContextWindow`).
        """
        end = self.first
        while end < len(self.tokens):
            # The first window has what fits behind the prompt; the others keep half for what is before.
            begin, end = end, min(len(self.tokens), max(size, end + size // 2))
            start = max(0, end - size)
            tokens = self.tokens[start:end].copy()
            tokens[0] = self.tokens[0]
            first = max(1, begin - start)
            yield _certain(tokens, first)


def read_text(prompt: Sequence[int], output: Sequence[int], token_map: TokenMap | None) -> DraftText | None:
    """Returns a text as the draft model reads it while it drafts; None if there is no token to learn.

    prompt, output: the target's tokens. token_map: None for a draft model with the target's tokenizer. With another
    one the text is read by the drafter's own code: the prompt at once, and then each token as it is committed.
    """
    if token_map is None:
        tokens, first = [*prompt, *output], len(prompt)
    else:
        length = len(prompt) + len(output)
        draft = TranslatedDraft(DraftSpec(prompt, SamplingParams(), 1, length), token_map, _UNBOUNDED)
        before = draft.tokens.copy()
        for token in output:
            draft.commit([token])
        tokens = draft.tokens
        # The end of the prompt may be read again together with the output.
        same = (place for place, pair in enumerate(zip(before, tokens, strict=False)) if pair[0] != pair[1])
        first = next(same, min(len(before), len(tokens)))
    first = max(1, first)
    return DraftText(np.array(tokens, np.int32), first) if first < len(tokens) else None


def _certain(tokens: Ids, first: int) -> Example:
    """Returns the example in which the next token is certain, from position `first` on."""
    token_ids = tokens[first:, None]
    return Example(tokens, first, token_ids, np.zeros(token_ids.shape, np.float32)).check()
