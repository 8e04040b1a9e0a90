"""A served text as the draft model reads it, and the windows that it is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import numpy as np

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translated_draft import TranslatedDraft
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.training.data.example import Example, Ids
from draftwire_core.training.learning.texts.top_tokens import TopTokens

_UNBOUNDED = ContextWindow(1 << 30, 1 << 30)
"""A window that no text fills: texts are cut into windows once they are read."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftText:
    """A text in the draft model's tokens."""

    tokens: Ids
    """The text, prompt and output."""
    first: int
    """Position of the output's first token, at least 1."""
    top: TopTokens
    """The target's likeliest tokens at the positions of the output, in the draft model's tokens."""

    @property
    def positions(self) -> int:
        """Tokens of the output, which are learned."""
        return len(self.tokens) - self.first

    def windows(self, size: int, vocab_size: int) -> Iterator[Example]:
        """Yields windows of up to `size` tokens, at least 2, in which each token of the output is learned once.

        What is learned is `TopTokens.targets`, without ids from `vocab_size` on.

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
            known = self.top[start + first - self.first : end - self.first]
            yield Example(tokens, first, *known.targets(tokens[first:], vocab_size)).check()


def read_text(
    prompt: Sequence[int], output: Sequence[int], token_map: TokenMap | None, top: TopTokens
) -> DraftText | None:
    """Returns a text as the draft model reads it while it drafts; None if there is no token to learn.

    prompt, output: the target's tokens. token_map: None for a draft model with the target's tokenizer. With another
    one the text is read by the drafter's own code: the prompt at once, and then each token as it is committed. top: the
    target's likeliest tokens at the positions of the output.
    """
    if token_map is None:
        tokens, first = [*prompt, *output], max(1, len(prompt))
        top = top[first - len(prompt) :]
    else:
        length = len(prompt) + len(output)
        draft = TranslatedDraft(DraftSpec(prompt, SamplingParams(), 1, length), token_map, _UNBOUNDED)
        before = draft.tokens.copy()
        for token in output:
            draft.commit([token])
        tokens = draft.tokens
        # The end of the prompt may be read again together with the output.
        same = (place for place, pair in enumerate(zip(before, tokens, strict=False)) if pair[0] != pair[1])
        first = max(1, next(same, min(len(before), len(tokens))))
        top = _translated(top, output, tokens, first, before, token_map)
    return DraftText(np.array(tokens, np.int32), first, top) if first < len(tokens) else None


def _translated(
    top: TopTokens,
    output: Sequence[int],
    tokens: Sequence[int],
    first: int,
    before: Sequence[int],
    token_map: TokenMap,
) -> TopTokens:
    """Returns the likeliest tokens at the positions of draft tokens, from `first` on: each token of the target gives
    its probability to the draft token that it begins with.

    A position has them if it begins where a token of the target does, with the draft token that begins that one.
    before: the draft tokens before the output.
    """
    found = TopTokens.none(max(0, len(tokens) - first))
    if not top.top or not len(found):
        return found
    pieces = token_map.pieces
    lacking = top.token_ids >= len(pieces)
    begins = pieces.nth(0, np.where(lacking, 0, top.token_ids).ravel()).reshape(top.token_ids.shape)
    lacking |= begins < 0
    begins, log_probs = np.where(lacking, 0, begins), np.where(lacking, -np.inf, top.log_probs)
    # Places in the text as symbols. Turn markers are other ones for the draft model, and end what is compared.
    written = [token_map.symbols([token]) for token in output]
    read = [token_map.draft.symbols([token]) for token in tokens]
    begin = len(token_map.draft.symbols(before))
    alike = takewhile(lambda pair: pair[0] == pair[1], zip("".join(written), "".join(read)[begin:], strict=False))
    end = begin + sum(1 for _ in alike)
    at = dict(zip(accumulate(map(len, written), initial=begin), range(len(output)), strict=False))
    places = accumulate(map(len, read), initial=0)
    found = TopTokens.empty(len(found), top.top)
    for position, (token, place) in enumerate(zip(tokens, places, strict=False)):
        index = at.get(place)
        if position < first or index is None or place >= end:
            continue
        if token_map.pieces[output[index]][:1] == (token,):
            found.token_ids[position - first], found.log_probs[position - first] = begins[index], log_probs[index]
    return found
