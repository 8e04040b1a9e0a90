"""Vocabularies for tests of translation."""

from functools import cache

from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.text.vocabulary import Vocabulary
from tests.harness.models.byte_tokenizers import backend

KINDS = ("target", "draft", "fallback", "spaced")


@cache
def vocabulary(kind: str) -> Vocabulary:
    made = backend(kind)
    return Vocabulary(made, {"eos": 0}, opening=made.encode("").ids)


@cache
def token_map(target: str, draft: str) -> TokenMap:
    return TokenMap(vocabulary(target), vocabulary(draft))
