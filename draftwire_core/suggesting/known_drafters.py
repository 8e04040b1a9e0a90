"""The table of published drafters, `known_drafters.toml`, and which of them fit a target."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from draftwire_core.suggesting.model_names import same_model
from draftwire_core.suggesting.own_heads import DFLASH, EAGLE, MEDUSA
from draftwire_core.suggesting.target_facts import TargetFacts

MODEL = "model"
"""The kind of a small model with the target's tokenizer."""
KINDS = (EAGLE, DFLASH, MEDUSA, MODEL)
_TABLE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDrafter:
    """An entry of the table; the file says what its fields mean."""

    repository: str
    revision: str
    licence: str
    kind: str
    names: Sequence[str]
    architectures: Sequence[str]
    read_megabytes: int
    download_megabytes: int
    checked: str
    layers: int = 0
    hidden: int = 0
    slot_bytes: int = 0
    vocabularies: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.repository}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not self.names and not self.architectures:
            raise ValueError(f"{self.repository}: names no target")

    def fits_configuration(self, facts: TargetFacts) -> bool:
        """Whether a target's architecture, sizes and vocabulary are those of the entry."""
        known = {_plain(each) for each in self.architectures}
        return (
            _plain(facts.architecture) in known
            and self.layers in (0, facts.layers)
            and self.hidden in (0, facts.hidden)
            and (not self.vocabularies or facts.vocabulary in self.vocabularies)
        )


@cache
def known_drafters() -> tuple[KnownDrafter, ...]:
    """Returns the entries of the table, heads first."""
    with _TABLE.open("rb") as file:
        return tuple(KnownDrafter(**each) for each in tomllib.load(file)["drafter"])


def fitting(facts: TargetFacts, table: Sequence[KnownDrafter]) -> list[tuple[KnownDrafter, str]]:
    """Returns the entries that fit a target, in the table's order, each with how it was found to fit.

    If the target's files name a target of a head in the table, heads of other targets of the same sizes do not fit.
    """
    heads = [each for each in table if each.kind != MODEL]
    named = any(same_model(facts.names, each.names) for each in heads)
    found = []
    for each in table:
        if same_model(facts.names, each.names):
            found.append((each, "by the target's name"))
        elif each.fits_configuration(facts) and not (named and each.kind != MODEL):
            found.append((each, "by the target's configuration"))
    own = {name.removeprefix("hf://") for name in facts.names[:1]}  # a model is no drafter of itself
    return [(each, how) for each, how in found if each.repository not in own]


def _plain(architecture: str) -> str:
    return architecture.lower().replace("-", "").replace("_", "")
