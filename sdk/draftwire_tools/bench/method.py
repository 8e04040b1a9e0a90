"""Speculation methods: their names and their properties."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from draftwire._types.drafter import Drafter
from draftwire._types.speculation import Acceptance, Speculation

PLAIN_NAME = "plain"
PREDICTION = "prediction"

_LOCAL = "local:"
_NOBODY = {"draftwire-bench": "nobody"}
"""A label that no drafter has: a request that asks for it gets none of the pool's drafters."""
_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a kind of drafter, in addition to the target."""

    draft_model: bool
    """Whether it needs a model of its own."""
    training: str
    """The part that must be trained for it; "no" if none."""


NEEDS = {
    "draft": Needs(True, "the draft model"),
    "ngram": Needs(False, "no"),
    "suffix": Needs(False, "no"),
    "lookahead": Needs(False, "no"),
    "early_exit": Needs(False, "no"),
    "medusa": Needs(False, "heads"),
    "recurrent": Needs(False, "the head"),
    "eagle3": Needs(False, "its layer"),
    "dflash": Needs(False, "its layers"),
    "mtp": Needs(False, "no"),
    PREDICTION: Needs(False, "no"),
}
"""Requirements of the drafters that run in the verifier, by name."""
_DRAFT_MODEL = NEEDS["draft"]


@dataclass(frozen=True, slots=True)
class Method:
    """A combination of drafters with an acceptance rule."""

    name: str
    """The method's name in the results."""
    drafters: tuple[Drafter, ...] = ()
    """Drafters of the pool that draft at the same time."""
    predicts: bool = False
    """Whether requests carry the expected outputs of their prompts."""
    acceptance: Acceptance = "coupled"
    """The acceptance rule."""

    @property
    def is_plain(self) -> bool:
        """Whether it is plain decoding, the baseline."""
        return not self.drafters and not self.predicts

    @property
    def exact(self) -> bool:
        """Whether its outputs must equal plain decoding's."""
        return self.acceptance == "coupled"

    @property
    def services(self) -> list[str]:
        """Addresses of its drafters that run outside the verifier."""
        return [drafter.address for drafter in self.drafters if not drafter.address.startswith(_LOCAL)]

    @property
    def needs(self) -> list[Needs | None]:
        """Requirements of each part; None if unknown."""
        found = [_needs(drafter.address) for drafter in self.drafters]
        return [*found, NEEDS[PREDICTION]] if self.predicts else found

    @property
    def weights_bytes(self) -> int:
        """Bytes of its models' weights, as drafters report them."""
        models = [drafter.model for drafter in self.drafters if drafter.model is not None]
        return sum(model.parameters * _WEIGHT_BYTES.get(model.dtype, 4) for model in models)

    def speculation(self, prediction: str | None) -> Speculation:
        """Returns the speculation options of a request."""
        if self.is_plain:
            return Speculation(enabled=False)
        names = [drafter.name for drafter in self.drafters]
        return Speculation(
            drafters=names or None,
            labels=None if names else _NOBODY,
            prediction=prediction if self.predicts else None,
            acceptance=self.acceptance,
        )


PLAIN = Method(PLAIN_NAME)


@dataclass(frozen=True, slots=True)
class MethodName:
    """The name of a method: ``PART+PART@RULE``."""

    text: str
    """The whole name."""
    parts: tuple[str, ...]
    """Names or addresses of drafters, or ``prediction``."""
    acceptance: Acceptance
    """The acceptance rule."""


def parse_method(text: str, attached: Iterable[str]) -> MethodName:
    """Parses a method's name. An attached drafter may have any name, even one that would parse differently.

    Raises:
        ValueError: the name is not valid.
    """
    attached = set(attached)
    if text in attached:
        return MethodName(text, (text,), "coupled")
    names, at, rule = text.rpartition("@")
    rules: dict[str, Acceptance] = {name: name for name in get_args(Acceptance)}
    if not at:
        names, rule = text, "coupled"
    if rule not in rules:
        raise ValueError(f"--method {text}: unknown acceptance rule {rule!r}; expected one of {', '.join(rules)}")
    parts = (names,) if names in attached else tuple(names.split("+"))
    if not all(parts) or len(set(parts)) < len(parts):
        raise ValueError(f"--method {text}: expected names or addresses of different drafters, joined by +")
    return MethodName(text, parts, rules[rule])


def _needs(address: str) -> Needs | None:
    if not address.startswith(_LOCAL):
        return _DRAFT_MODEL
    return NEEDS.get(address.removeprefix(_LOCAL).partition("?")[0])
