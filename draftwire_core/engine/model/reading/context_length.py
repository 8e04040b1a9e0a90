"""The context of a model: how many tokens its longest sequence may have."""

from __future__ import annotations

from transformers import PretrainedConfig

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.model.attention.rotary_factors import original_context

_UNDECLARED = 2048
"""Context of a model that declares none."""


def context_of(config: PretrainedConfig, asked: int | None, name: str = "") -> int:
    """Tokens of the longest sequence. config: of the text decoder. asked: `--context-length`; None for the default.

    The default is what the model declares, but for a model with two sets of rotary factors what the short ones are for:
    up to there transformers gives the same text. Raises ModelLoadError if more is asked for than declared.
    """
    declared = int(getattr(config, "max_position_embeddings", None) or _UNDECLARED)
    if asked is None:
        return min(declared, original_context(config) or declared)
    if asked > declared:
        raise ModelLoadError(f"model {name}: --context-length {asked} is longer than the model's {declared} tokens")
    return asked
