"""The translation between a draft model's tokens and the target's, for whatever loads a draft model."""

from __future__ import annotations

import logging

from draftwire_core.engine.drafters.translation.spelling_cache import SpellingCache, cache_directory
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def translation(model: PackedModel, own: Tokenizer, target: Tokenizer) -> TokenMap | None:
    """Returns the map between the tokens of a draft model and of a target; None if both have the same tokenizer.

    Their spellings are kept in the user's cache directory: large vocabularies take seconds the first time.

    own: the draft model's tokenizer. target: the target's. Raises ModelLoadError if the model cannot translate.
    """
    if target.sha256 == own.sha256:
        return None
    if model.recurrent_layers:
        raise ModelLoadError(
            f"{model.name}: a draft model with recurrent layers cannot translate to another tokenizer, because a "
            "translation may change tokens that their states already comprise"
        )
    vocabulary = own.vocabulary()
    if len(vocabulary) > model.vocab_size:
        raise ModelLoadError(
            f"{model.name}: the model has {model.vocab_size} tokens, but its tokenizer has {len(vocabulary)}"
        )
    return token_map_of(vocabulary, target.vocabulary())


def token_map_of(own: Vocabulary, target: Vocabulary) -> TokenMap:
    """Returns the map between a draft model's tokens and a target's; see `translation`."""
    token_map = TokenMap(target, own, SpellingCache(cache_directory()).spelled(target, own))
    if token_map.turns is None:
        without = [name for name, each in (("target", target), ("draft model", own)) if not each.turns]
        reason = f"no chat template that renders for the {' and the '.join(without)}" if without else "none in common"
        log.info("turn markers not mapped", extra={"reason": reason})
    return token_map
