"""A speculation method, as it is asked for and as it is known."""

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
"""A label that no drafter carries: a request that asks for it gets none of the pool's drafters."""
_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter of a kind needs, beside the target."""

    draft_model: bool
    """Whether it needs a model of its own."""
    training: str
    """What has to be trained for it."""


NEEDS = {
    "draft": Needs(True, "the draft model"),
    "ngram": Needs(False, "no"),
    "suffix": Needs(False, "no"),
    "lookahead": Needs(False, "no"),
    "early_exit": Needs(False, "no"),
    "medusa": Needs(False, "heads"),
    PREDICTION: Needs(False, "no"),
}
"""By name of what drafts in the verifier."""
_DRAFT_MODEL = NEEDS["draft"]


@dataclass(frozen=True, slots=True)
class Method:
    """What drafts, and how its tokens are accepted."""

    name: str
    """What it is called in the results."""
    drafters: tuple[Drafter, ...] = ()
    """Drafters of the pool that draft at once."""
    predicts: bool = False
    """Whether requests bring the output that their prompts expect."""
    acceptance: Acceptance = "coupled"
    """The rule of acceptance."""

    @property
    def is_plain(self) -> bool:
        """Whether it is plain decoding, with which the others are compared."""
        return not self.drafters and not self.predicts

    @property
    def exact(self) -> bool:
        """Whether its outputs have to be those of plain decoding."""
        return self.acceptance == "coupled"

    @property
    def services(self) -> list[str]:
        """Addresses of its drafters that run beside the verifier, not in it."""
        return [drafter.address for drafter in self.drafters if not drafter.address.startswith(_LOCAL)]

    @property
    def needs(self) -> list[Needs | None]:
        """What each part of it needs; None for one of which that is not known."""
        found = [_needs(drafter.address) for drafter in self.drafters]
        return [*found, NEEDS[PREDICTION]] if self.predicts else found

    @property
    def weights_bytes(self) -> int:
        """Bytes of its models' weights, by what drafters tell of them."""
        models = [drafter.model for drafter in self.drafters if drafter.model is not None]
        return sum(model.parameters * _WEIGHT_BYTES.get(model.dtype, 4) for model in models)

    def speculation(self, prediction: str | None) -> Speculation:
        """Returns what a request asks for."""
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
    """A method as it was asked for: ``PART+PART@RULE``."""

    text: str
    """The whole name."""
    parts: tuple[str, ...]
    """Names or addresses of drafters, or ``prediction``."""
    acceptance: Acceptance
    """The rule of acceptance."""


def parse_method(text: str, attached: Iterable[str]) -> MethodName:
    """Returns what a method's name says. A drafter that is attached may have any name, also one that reads otherwise.

    Raises:
        ValueError: it says nothing.
    """
    attached = set(attached)
    if text in attached:
        return MethodName(text, (text,), "coupled")
    names, at, rule = text.rpartition("@")
    rules: dict[str, Acceptance] = {name: name for name in get_args(Acceptance)}
    if not at:
        names, rule = text, "coupled"
    if rule not in rules:
        raise ValueError(f"--method {text}: there is no rule of acceptance {rule!r}; they are {', '.join(rules)}")
    parts = (names,) if names in attached else tuple(names.split("+"))
    if not all(parts) or len(set(parts)) < len(parts):
        raise ValueError(f"--method {text}: expected names or addresses of different drafters, with + between them")
    return MethodName(text, parts, rules[rule])


def _needs(address: str) -> Needs | None:
    if not address.startswith(_LOCAL):
        return _DRAFT_MODEL
    return NEEDS.get(address.removeprefix(_LOCAL).partition("?")[0])
