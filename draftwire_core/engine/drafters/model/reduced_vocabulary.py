"""A draft model that computes the logits of a part of its vocabulary alone.

The output head takes most of a small model's step where the vocabulary is large: 63 % of the weights of Gemma 3 270M.
Tokens that are left out are never drafted, which costs acceptance; compare `draft_vocab_size` in EAGLE-3's and DFlash's
checkpoints.
"""

from __future__ import annotations

import torch

from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.model.linear.drafter_linear import head_of_rows, rows_of_head
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.vocabulary import Vocabulary

LEAST = 1024
"""Fewest tokens of a reduced vocabulary."""


def drafted_tokens(vocabulary: Vocabulary, count: int, size: int) -> torch.Tensor:
    """Returns the ids of so many tokens, int64 [count], ascending: special tokens and single characters, and of the
    others the lowest ids, which merges of frequent characters have in most tokenizers. size: the model's vocabulary.

    Raises ModelLoadError for fewer tokens than special ones and single characters.
    """
    kept = {each for each in vocabulary.specials.values() if each < size}
    kept |= {index for index, spelling in enumerate(vocabulary.spellings[:size]) if _is_character(spelling)}
    if len(kept) > count:
        raise ModelLoadError(f"option vocabulary: must be at least {len(kept)}, as many as there are characters")
    for index in range(size):
        if len(kept) >= count:
            break
        kept.add(index)
    return torch.tensor(sorted(kept), dtype=torch.int64)


def reduce_vocabulary(model: PackedModel, token_ids: torch.Tensor) -> None:
    """Replaces a draft model's output head by one of these tokens, int64 [tokens], in 8 bits. For models on CPUs,
    before they draft: passes then return logits [rows, tokens], and `model.drafted` has the tokens."""
    like = torch.empty(model.hidden_size, 0, dtype=model.dtype, device=model.device)
    rows, bias = rows_of_head(model.model.get_output_embeddings(), token_ids, like)
    model.model.set_output_embeddings(head_of_rows(rows, bias, model.dtype))
    model.passes = model.backend.layers(model.model)
    model.drafted = token_ids


def _is_character(spelling: bytes) -> bool:
    return 0 < len(spelling) <= 4 and len(spelling.decode(errors="ignore")) <= 1
