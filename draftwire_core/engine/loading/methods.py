"""The speculation methods that run in the verifier, by their names in drafter addresses; `local:draft` is made here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, get_args

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.device.choices import KvDtype, Weights
from draftwire_core.engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from draftwire_core.engine.drafters.early_exit import EarlyExitOptions, early_exit_drafter
from draftwire_core.engine.drafters.lookahead.lookahead import LookaheadDrafter, LookaheadOptions
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.lookup.suffix import SuffixOptions, suffix_drafter
from draftwire_core.engine.drafters.medusa import MedusaOptions, medusa_drafter
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.drafters.mtp.mtp import MtpOptions, mtp_drafter
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.room_for_cache import OF_TARGET, check_room
from draftwire_core.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LocalModelOptions:
    """Options of `local:draft`."""

    model: str = ""
    """Directory or hub id of a causal model with the target's tokenizer; required."""
    weights: str = "checkpoint"
    """Weights of the linear layers, as for the drafter service's `--weights`."""
    kv_dtype: str = "auto"
    """Type of keys and values in the KV cache, as for the drafter service's `--kv-dtype`."""

    def __post_init__(self) -> None:
        if not self.model:
            raise FieldError("model", "must be given: the directory or hub id of a draft model")
        if self.weights not in get_args(Weights):
            raise FieldError("weights", f"must be one of {', '.join(get_args(Weights))}, got {self.weights!r}")
        if self.kv_dtype not in get_args(KvDtype):
            raise FieldError("kv_dtype", f"must be one of {', '.join(get_args(KvDtype))}, got {self.kv_dtype!r}")


def local_model_drafter(options: LocalModelOptions, target: PackedModel, hub: bool = True) -> LocalModelDrafter:
    """Makes the drafter `local:draft`. hub: whether its model may be a hub id. Raises ModelLoadError."""
    checkpoint = Checkpoint.find(options.model, hub=hub)
    model = PackedModel.load(
        checkpoint,
        slots=target.pool.capacity,
        device=str(target.device),
        row_exact=False,
        weights=cast(Weights, options.weights),
        kv_dtype=cast(KvDtype, options.kv_dtype),
    )
    ours, theirs = Tokenizer.load(checkpoint).sha256, Tokenizer.load(target.checkpoint or target.name).sha256
    if ours != theirs:
        raise ModelLoadError(
            f"model {options.model}: its tokenizer, {ours[:12]}, is not the target's, {theirs[:12]}; a drafter service "
            "can draft with a different one"
        )
    check_room(model, run_self_test(model).slot_bytes, OF_TARGET)
    if target.captured:
        model.capture_graphs()
    return LocalModelDrafter(model, min(1.0, model.parameters / target.parameters))


class Method(NamedTuple):
    """A speculation method: its options and the function that makes its drafters."""

    options: type[Any]
    """A dataclass of ints, bools and strings, all with defaults; raises FieldError for a value out of range."""
    make: Callable[[Any, PackedModel, bool], Drafter]
    """Makes a drafter from its options, its target, and whether its model may be a hub id. May read files and block: it
    is called in a separate thread while the target runs. Raises ModelLoadError."""


METHODS = {
    "dflash": Method(DflashOptions, dflash_drafter),
    "draft": Method(LocalModelOptions, local_model_drafter),
    "eagle3": Method(EagleOptions, eagle3_drafter),
    "early_exit": Method(EarlyExitOptions, lambda options, target, _: early_exit_drafter(options, target)),
    "lookahead": Method(LookaheadOptions, lambda options, *_: LookaheadDrafter(options)),
    "medusa": Method(MedusaOptions, lambda options, target, _: medusa_drafter(options, target)),
    "mtp": Method(MtpOptions, lambda options, target, _: mtp_drafter(options, target)),
    "ngram": Method(NgramOptions, lambda options, *_: ngram_drafter(options)),
    "suffix": Method(SuffixOptions, lambda options, *_: suffix_drafter(options)),
}
