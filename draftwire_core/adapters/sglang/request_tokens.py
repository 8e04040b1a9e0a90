"""The tokens of one of SGLang's requests in one array, which grows as the request does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROOM = 256
"""Fewest free places of a new array."""


class RequestTokens:
    """Prompt and output of a request. A step adds the new tokens only, however long the request is."""

    def __init__(self, prompt: Sequence[int]):
        self._prompt = prompt
        self._tokens = np.empty(len(prompt) + _ROOM, dtype=np.int64)
        self._tokens[: len(prompt)] = prompt
        self._output = 0
        """Number of output tokens in the array."""

    def belongs_to(self, prompt: Sequence[int]) -> bool:
        """Whether this is the request with this prompt, the same object: SGLang's clients may use an id again."""
        return self._prompt is prompt

    def update(self, output: Sequence[int], ahead: Sequence[int]) -> np.ndarray:
        """Returns all tokens, int64 [length], as a view that the next call changes.

        output: the request's output. ahead: tokens after it that SGLang has not added to it yet.
        """
        start = len(self._prompt)
        if len(output) < self._output:
            self._output = 0
        length = start + len(output) + len(ahead)
        if length > len(self._tokens):
            grown = np.empty(2 * length, dtype=np.int64)
            grown[: start + self._output] = self._tokens[: start + self._output]
            self._tokens = grown
        self._tokens[start + self._output : start + len(output)] = output[self._output :]
        self._tokens[start + len(output) : length] = ahead
        self._output = len(output)
        return self._tokens[:length]
