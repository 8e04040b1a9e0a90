"""The speculation methods that need no model, by the names they have in drafters' addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from speculative_engine.drafters.drafter import Drafter
from speculative_engine.drafters.ngram import NgramOptions, ngram_drafter
from speculative_engine.drafters.suffix import SuffixOptions, suffix_drafter


class Method(NamedTuple):
    """How a drafter is made."""

    options: type[Any]
    """A dataclass of whole numbers and truth values, all with defaults; raises FieldError for one out of range."""
    make: Callable[[Any], Drafter]
    """The drafter, from its options."""


METHODS = {
    "ngram": Method(NgramOptions, ngram_drafter),
    "suffix": Method(SuffixOptions, suffix_drafter),
}
