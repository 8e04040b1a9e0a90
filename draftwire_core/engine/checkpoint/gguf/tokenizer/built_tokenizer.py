"""A tokenizer of transformers that was built of a vocabulary and merges, and still knows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

_OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)
"""The options of a BPE model, by their names in a tokenizer.json and in the library."""
_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""The fields of an added token besides its id, in the same way."""


@dataclass(frozen=True, slots=True)
class Built:
    """A tokenizer of the library, and what its BPE model was built of.

    The library gives merges back only as a part of the whole tokenizer in JSON, which takes seconds and a hundred
    megabytes to write and to read for a large vocabulary.
    """

    backend: Tokenizer
    vocabulary: Mapping[str, int] | None = None
    """The ids by name; None for other kinds of models."""
    merges: Sequence[tuple[str, str]] = ()
    """The merges in order; all differ."""

    def content(self) -> dict[str, Any]:
        """The content of the tokenizer.json, without how a text is cut to a length or filled up to one."""
        backend = self.backend
        if self.vocabulary is None:
            whole: dict[str, Any] = json.loads(backend.to_str())
            return whole
        model = backend.model
        options = {name: getattr(model, name) for name in _OPTIONS}
        return {
            "added_tokens": [_entry(index, token) for index, token in backend.get_added_tokens_decoder().items()],
            "normalizer": _state(backend.normalizer),
            "pre_tokenizer": _state(backend.pre_tokenizer),
            "post_processor": _state(backend.post_processor),
            "decoder": _state(backend.decoder),
            "model": {"type": "BPE", **options, "vocab": self.vocabulary, "merges": self.merges},
        }


def _entry(index: int, token: AddedToken) -> dict[str, Any]:
    return {"id": index, **{name: getattr(token, name) for name in _FLAGS}}


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())


class BuiltTokenizer(PreTrainedTokenizerFast):
    """A tokenizer of transformers with a backend of its own, of which the class would make a copy, in seconds."""

    def __init__(self, built: Built, **options: Any):
        self._tokenizer = built.backend
        self._built: Built | None = built
        super().__init__(**options)

    def take_content(self) -> dict[str, Any]:
        """The content of the tokenizer.json. What it was built of is dropped, since it takes a hundred megabytes, so
        that a second call takes seconds."""
        built, self._built = self._built or Built(self._tokenizer), None
        return built.content()


BuiltTokenizer.__name__ = PreTrainedTokenizerFast.__name__  # by which saved files name their class
