"""A text that the target wrote, as it is learned from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from draftwire_core.training.data.example import Ids
from draftwire_core.training.learning.texts.loops import without_loop

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

    @classmethod
    def of(cls, prompt: Sequence[int], output: Sequence[int], origin: Origin, most_prompt: int) -> ServedText:
        """Returns a text without the repetitions of a loop.

        most_prompt: tokens that are kept of a longer prompt: the first one, which often marks the beginning of a text,
        and the last ones.
        """
        kept = prompt if len(prompt) <= most_prompt else [*prompt[:1], *prompt[len(prompt) - most_prompt + 1 :]]
        return cls(np.array(kept, np.int32), without_loop(np.array(output, np.int32)), origin)

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
