"""The tokens of a tokenizer as bytes, without the rules by which it splits a text."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from draftwire_core.engine.text.vocabulary import id_count, spelling_of


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a tokenizer as bytes."""

    spellings: list[bytes]
    """Bytes by token id; the name for a special token, and empty for ids without a token."""
    specials: list[int]
    """Ids of special tokens, which stand for no text. Added tokens in angle brackets are among them: a form names them,
    and no text spells them."""

    @classmethod
    def of(cls, backend: Backend) -> TokenTable:
        """Returns the table of a tokenizer; a quarter of a second for 250,000 tokens.

        Raises:
            VocabularyError: the bytes of its tokens cannot be determined.
        """
        # The whole tokenizer as JSON would take a second and hundreds of megabytes for a large vocabulary.
        decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        spell = spelling_of(decoder)
        added = backend.get_added_tokens_decoder()
        tokens = backend.get_vocab(with_added_tokens=True)
        spellings = [b""] * id_count(tokens)
        specials = []
        for name, index in tokens.items():
            if index in added and (added[index].special or (name.startswith("<") and name.endswith(">"))):
                spellings[index] = name.encode()
                specials.append(index)
            else:
                spellings[index] = spell(name)
        return cls(spellings, specials)
