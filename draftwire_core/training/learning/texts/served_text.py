"""A text that the target wrote, as it is learned from: without loops.

A model that repeats itself to the end teaches nothing but to repeat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from draftwire_core.training.data.example import Ids
from draftwire_core.training.learning.texts.top_tokens import TopTokens

Origin = Literal["traffic", "own"]
"""traffic: a request of a client. own: a text that the target was asked to write in order to learn from it."""

_HELD_OUT = 10
"""One prompt in this many is held out."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedText:
    """A prompt and the target's output, in the target's tokens."""

    prompt: Ids
    """At least one token."""
    output: Ids
    """Without the repetitions of a loop."""
    origin: Origin
    top: TopTokens
    """The target's likeliest tokens at the positions of the output."""

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        output: Sequence[int],
        origin: Origin,
        most_prompt: int,
        top: TopTokens | None = None,
    ) -> ServedText:
        """Returns a text without the repetitions of a loop.

        most_prompt: tokens that are kept of a longer prompt: the first one, which often marks the beginning of a text,
        and the last ones. top: at the positions of the output; None if they are not known.
        """
        kept = prompt if len(prompt) <= most_prompt else [*prompt[:1], *prompt[len(prompt) - most_prompt + 1 :]]
        text = without_loop(np.array(output, np.int32))
        known = TopTokens.none(len(output)) if top is None else top
        return cls(np.array(kept, np.int32), text, origin, known[: len(text)])

    @property
    def held_out(self) -> bool:
        """Whether the text measures what was learned, and is not learned from. All texts of a prompt are alike in it,
        also after a restart."""
        digest = hashlib.sha256(self.prompt.astype("<i4").tobytes()).digest()
        return int.from_bytes(digest[:8]) % _HELD_OUT == 0

    @property
    def key(self) -> bytes:
        """Equal for equal texts."""
        return hashlib.sha256(self.prompt.tobytes() + b"|" + self.output.tobytes()).digest()[:16]


_LONGEST = 64
"""Most tokens of what is repeated."""
_COPIES = 4
"""Fewest copies in a row that are a loop."""
_SHORTEST = 32
"""Fewest tokens of a loop. Rows of dashes and blanks in ordinary text are shorter."""


def without_loop(tokens: Ids) -> Ids:
    """Returns the tokens [positions] up to the second repetition of the first loop; all of them if there is none.

    A loop is the same 1 to 64 tokens at least four times in a row, and at least 32 tokens long.
    """
    end = len(tokens)
    for size in range(1, min(_LONGEST, len(tokens) // _COPIES) + 1):
        # A run of `length` tokens that equal those `size` places before them ends length + size tokens that repeat.
        least = max(_COPIES * size, _SHORTEST) - size
        start = _first_run(tokens[size:] == tokens[:-size], least)
        if start is not None:
            end = min(end, start + 2 * size)
    return tokens[:end]


def _first_run(same: np.ndarray, least: int) -> int | None:
    """Returns where the first run of at least `least` true values begins."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    long = np.flatnonzero(ends - starts >= least)
    return int(starts[long[0]]) if len(long) else None
