"""The speculation methods that run in the verifier, by their names in drafter addresses; `local:draft` is made here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.device.choices import KvDtype, Weights
from draftwire_core.engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from draftwire_core.engine.drafters.early_exit import EarlyExitOptions, early_exit_drafter
from draftwire_core.engine.drafters.lookahead.lookahead import LookaheadDrafter, LookaheadOptions
from draftwire_core.engine.drafters.lookup.lookup_drafter import LookupDrafter
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.lookup.shared_text_file import SharedTextFileError, read_shared_texts
from draftwire_core.engine.drafters.lookup.suffix import SuffixOptions, suffix_drafter
from draftwire_core.engine.drafters.medusa import MedusaOptions, medusa_drafter
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.drafters.model.reduced_vocabulary import LEAST, drafted_tokens, reduce_vocabulary
from draftwire_core.engine.drafters.mtp.mtp import MtpOptions, mtp_drafter
from draftwire_core.engine.drafters.recurrent.recurrent import RecurrentOptions, recurrent_drafter
from draftwire_core.engine.drafters.translation.local_translating import LocalTranslatingDrafter
from draftwire_core.engine.drafters.translation.translating import tree_slots
from draftwire_core.engine.drafters.translation.translation import translation
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.errors import FieldError, ModelLoadError
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.room_for_cache import OF_TARGET, check_room
from draftwire_core.engine.model.weights_fingerprint import served_fingerprint
from draftwire_core.engine.text.tokenizer import Tokenizer

LEAST_SLOTS = 256
"""Fewest KV slots of a draft model that may be asked for."""


@dataclass(frozen=True, slots=True)
class LocalModelOptions:
    """Options of `local:draft`."""

    model: str = ""
    """Directory, GGUF file or hub id of a causal model; required. One with another tokenizer than the target's
    translates."""
    weights: str = "checkpoint"
    """Weights of the linear layers, as for the drafter service's `--weights`."""
    kv_dtype: str = "auto"
    """Type of keys and values in the KV cache, as for the drafter service's `--kv-dtype`."""
    kv_slots: int = 0
    """Tokens that fit into its KV cache; 0 for as many as the target's sequences can have, the target's own at most."""
    vocabulary: int = 0
    """Tokens that it can draft, on a CPU: those of the lowest ids, and single characters; 0 for all."""

    def __post_init__(self) -> None:
        if self.vocabulary and self.vocabulary < LEAST:
            raise FieldError("vocabulary", f"must be 0 or at least {LEAST}, got {self.vocabulary}")
        if not self.model:
            raise FieldError("model", "must be given: the directory or hub id of a draft model")
        if self.weights not in get_args(Weights):
            raise FieldError("weights", f"must be one of {', '.join(get_args(Weights))}, got {self.weights!r}")
        if self.kv_dtype not in get_args(KvDtype):
            raise FieldError("kv_dtype", f"must be one of {', '.join(get_args(KvDtype))}, got {self.kv_dtype!r}")
        if self.kv_slots and self.kv_slots < LEAST_SLOTS:
            raise FieldError("kv_slots", f"must be 0 or at least {LEAST_SLOTS}, got {self.kv_slots}")


@dataclass(frozen=True, slots=True)
class DraftedEngine:
    """The engine that a drafter is made for, besides its model."""

    limits: EngineLimits = field(default_factory=EngineLimits)
    tokenizer: Tokenizer | None = None
    """The target's tokenizer, which takes seconds to load again."""

    def tokenizer_of(self, target: PackedModel) -> Tokenizer:
        """Returns the target's tokenizer, which is loaded if it is not given. Raises ModelLoadError."""
        return self.tokenizer or Tokenizer.load(target.checkpoint or target.name)


def local_model_drafter(
    options: LocalModelOptions, target: PackedModel, hub: bool = True, engine: DraftedEngine | None = None
) -> LocalModelDrafter:
    """Makes the drafter `local:draft`. hub: whether its model may be a hub id. engine: that it drafts for; None for one
    with the usual limits. Raises ModelLoadError."""
    engine = engine if engine is not None else DraftedEngine()
    checkpoint = Checkpoint.find(options.model, hub=hub)
    model = PackedModel.load(
        checkpoint,
        slots=target.pool.capacity,
        device=str(target.device),
        row_exact=False,
        weights=cast(Weights, options.weights),
        kv_dtype=cast(KvDtype, options.kv_dtype),
    )
    token_map = translation(model, Tokenizer.load(checkpoint), engine.tokenizer_of(target))
    limits = engine.limits
    tree = limits.max_tree_nodes if token_map is None else tree_slots(limits.max_tree_nodes)
    model.resize(_slots(options.kv_slots, model, target, limits.max_sequences, tree))
    check_room(model, run_self_test(model).slot_bytes, f"kv_slots, or {OF_TARGET}")
    if target.captured:
        model.capture_graphs()
    size = model.parameters
    if options.vocabulary:
        size -= _reduce(model, options.vocabulary, translates=token_map is not None, checkpoint=checkpoint)
    share = min(1.0, size / target.parameters)
    if token_map is None:
        return LocalModelDrafter(model, share, model.vocab_size if model.vocab_size < target.vocab_size else None)
    return LocalTranslatingDrafter(model, token_map, share)


def _reduce(model: PackedModel, count: int, *, translates: bool, checkpoint: Checkpoint) -> int:
    """Leaves a model so many tokens to draft; returns the parameters that it does without. Raises ModelLoadError where
    that is not supported."""
    if translates:
        raise ModelLoadError("option vocabulary: applies to draft models with the target's tokenizer only")
    if model.device.type != "cpu":
        raise ModelLoadError(f"option vocabulary: applies to CPUs only, not to {model.device}")
    token_ids = drafted_tokens(Tokenizer.load(checkpoint).vocabulary(), min(count, model.vocab_size), model.vocab_size)
    reduce_vocabulary(model, token_ids)
    return (model.vocab_size - len(token_ids)) * model.hidden_size


def _slots(asked: int, model: PackedModel, target: PackedModel, sequences: int, tree: int) -> int:
    """KV slots of a draft model next to a target. A target may have many more than its sequences need, to keep those of
    earlier ones, which a draft model does not.

    asked: by an option; 0 for as many as can be in use. tree: slots of a sequence's tree, next to which one of half the
    size must fit.
    """
    longest = min(model.context_length, target.context_length) + tree
    return max(asked or min(target.pool.capacity, sequences * longest), tree + tree // 2)


class Method(NamedTuple):
    """A speculation method: its options and the function that makes its drafters."""

    options: type[Any]
    """A dataclass of ints, bools and strings, all with defaults; raises FieldError for a value out of range."""
    make: Callable[[Any, PackedModel, bool, DraftedEngine], Drafter]
    """Makes a drafter from its options, its target, whether its model may be a hub id, and the engine that it is for.
    May read files and block: it is called in a separate thread while the target runs. Raises ModelLoadError."""


def _suffix_drafter(options: SuffixOptions, target: PackedModel, _: bool, engine: DraftedEngine) -> LookupDrafter:
    """Makes the drafter `local:suffix`, with the texts of a file if there is one. Raises ModelLoadError."""
    if not options.texts:
        return suffix_drafter(options)
    fingerprint = served_fingerprint(target.fingerprint, engine.tokenizer_of(target).sha256)
    try:
        texts = read_shared_texts(Path(options.texts), fingerprint, options.tokens_read)
    except SharedTextFileError as error:
        raise ModelLoadError(f"option texts: {error}") from error
    return suffix_drafter(options, texts)


METHODS = {
    "dflash": Method(DflashOptions, lambda options, target, hub, _: dflash_drafter(options, target, hub)),
    "draft": Method(LocalModelOptions, local_model_drafter),
    "eagle3": Method(EagleOptions, lambda options, target, hub, _: eagle3_drafter(options, target, hub)),
    "early_exit": Method(EarlyExitOptions, lambda options, target, *_: early_exit_drafter(options, target)),
    "lookahead": Method(LookaheadOptions, lambda options, *_: LookaheadDrafter(options)),
    "medusa": Method(MedusaOptions, lambda options, target, *_: medusa_drafter(options, target)),
    "mtp": Method(MtpOptions, lambda options, target, *_: mtp_drafter(options, target)),
    "ngram": Method(NgramOptions, lambda options, *_: ngram_drafter(options)),
    "recurrent": Method(RecurrentOptions, lambda options, target, *_: recurrent_drafter(options, target)),
    "suffix": Method(SuffixOptions, _suffix_drafter),
}
