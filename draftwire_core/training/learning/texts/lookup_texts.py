"""The texts that a lookup drafter begins with after a restart: `local:suffix?shared=true&texts=DIR/lookup.ids`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from draftwire_core.engine.drafters.lookup.shared_text_file import write_shared_texts
from draftwire_core.engine.drafters.lookup.suffix import SuffixOptions
from draftwire_core.training.learning.texts.text_store import TextStore
from draftwire_tools.serve.learner_process import LOOKUP_TEXTS

_MOST_TOKENS = SuffixOptions().tokens_read
"""As many as the drafter reads by default."""


def write_lookup_texts(directory: Path, store: TextStore, target: str) -> None:
    """Writes the newest texts, those of clients first. target: fingerprint of the target. Raises OSError."""
    texts = store.texts()
    ordered = chain(*([text for text in texts if text.origin == origin] for origin in ("traffic", "own")))
    whole = ([*text.prompt.tolist(), *text.output.tolist()] for text in ordered)
    write_shared_texts(directory / LOOKUP_TEXTS, _within(whole), target)


def _within(texts: Iterator[list[int]]) -> Iterator[Sequence[int]]:
    """Yields texts while they have few enough tokens together."""
    room = _MOST_TOKENS
    for text in texts:
        room -= len(text)
        if room < 0:
            return
        yield text
