"""The speculation methods that run in the verifier's process, by their names in drafter addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftwire_core.engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from draftwire_core.engine.drafters.early_exit import EarlyExitOptions, early_exit_drafter
from draftwire_core.engine.drafters.lookahead.lookahead import LookaheadDrafter, LookaheadOptions
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.lookup.suffix import SuffixOptions, suffix_drafter
from draftwire_core.engine.drafters.medusa import MedusaOptions, medusa_drafter
from draftwire_core.engine.drafters.mtp.mtp import MtpOptions, mtp_drafter
from draftwire_core.engine.loading.local_model import LocalModelOptions, local_model_drafter
from draftwire_core.engine.model.packed_model import PackedModel


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
