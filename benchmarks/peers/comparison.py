"""Evaluation of several peers' measurements: best settings, equal outputs, ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.rates import decode_rate, whole_rate
from benchmarks.peers.process import PeerBatch
from draftwire_tools.spread import Spread
from draftwire_tools.turns import first_differing


@dataclass
class Contestant:
    """One method of one peer, at the best of its settings."""

    name: str
    precise: bool
    setting: str
    tried: dict[str, float | str]
    """Tokens per second at each setting tried, or the reason why it gave none."""
    about: str
    """Precision of weights and arithmetic."""
    peer: str
    """The peer's name, with which `name` begins."""
    runs: list[list[PeerBatch]] = field(default_factory=list)
    """Timings of each run, one per prompt."""
    failure: str | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return self.name.removeprefix(f"{self.peer} ")


def described(setting: Mapping[str, object]) -> str:
    """Describes a setting in words."""
    return ", ".join(f"{name} {value}" for name, value in setting.items()) or "as it is"


def best(tried: Mapping[str, float | str]) -> str | None:
    """Returns the setting with the highest rate; None if all have failed."""
    rates = {name: rate for name, rate in tried.items() if not isinstance(rate, str)}
    return max(rates, key=rates.__getitem__, default=None)


def agreement(reference: Sequence[PeerBatch], timings: Sequence[PeerBatch]) -> str:
    """Returns how many outputs equal the reference token for token, and after how many tokens the others differ."""
    pairs = [(a.token_ids[0], b.token_ids[0]) for a, b in zip(reference, timings, strict=True)]
    differing = [first_differing(a, b) for a, b in pairs if a != b]
    same = f"{len(pairs) - len(differing)} of {len(pairs)} the same"
    if not differing:
        return same
    return f"{same}; the others differ after {sum(differing) / len(differing):.0f} tokens on average"


def _ratio(ours: Contestant, other: Contestant) -> Spread:
    return Spread.ratio(list(map(decode_rate, ours.runs)), list(map(decode_rate, other.runs)))


def figures(contestants: Sequence[Contestant], reference: str, ours: str) -> dict[str, object]:
    """Returns the figures of one arrangement: rates, settings, agreement with `reference`, `ours` over everybody else,
    and our other methods over a peer's same ones and over those that they extend: "EAGLE-3 and prompt lookup" over
    "EAGLE-3", "draft model in the verifier" over "draft model".

    reference and ours are names of contestants. Raises KeyError if one is missing.
    """
    named = {contestant.name: contestant for contestant in contestants}
    shown: dict[str, object] = {}
    for name, each in named.items():
        if len(each.tried) > 1:
            shown[f"{name}, tried"] = "; ".join(
                f"{setting}: {rate if isinstance(rate, str) else f'{rate:.1f}'}" for setting, rate in each.tried.items()
            )
        if each.failure is not None:
            shown[name] = f"not measured: {each.failure}"
            continue
        shown[f"{name}, tokens/s"] = Spread.of([decode_rate(timings) for timings in each.runs])
        shown[f"{name}, tokens/s with the prompt"] = Spread.of([whole_rate(timings) for timings in each.runs])
        shown[f"{name}, setting"] = f"{each.setting}; {each.about}"
        if named[reference].failure is None:
            shown[f"{name}, outputs"] = agreement(named[reference].runs[0], each.runs[0])
    if named[ours].failure is None:
        others = [each for each in contestants if each.name != ours and each.failure is None]
        shown |= {f"{ours} / {each.name}": _ratio(named[ours], each) for each in others}
        rivals = [each for each in others if each.precise]
        ahead = [each.name for each in rivals if _ratio(named[ours], each).median < 1]
        shown["ahead of us"] = ", ".join(ahead) or "nobody with the same precision"
    for mine in contestants:
        if mine.peer == named[ours].peer and mine.name != ours and mine.failure is None:
            theirs = [each for each in contestants if each.peer != mine.peer and each.failure is None]
            alike = [each for each in theirs if f"{mine.method} ".startswith(f"{each.method} ")]
            shown |= {f"{mine.name} / {each.name}": _ratio(mine, each) for each in alike}
    fastest = _fastest_speculation(contestants)
    our_best = next((each for each in fastest if each.peer == named[ours].peer), None)
    return shown | {
        f"{our_best.peer} best speculation / {each.peer} best speculation": _ratio(our_best, each)
        for each in fastest
        if our_best is not None and each is not our_best
    }


def _fastest_speculation(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Returns the method with speculation of each peer that has the highest median rate."""
    fastest: dict[str, Contestant] = {}
    for each in contestants:
        if each.failure is None and each.precise and not each.name.endswith(" plain"):
            fastest[each.peer] = max(fastest.get(each.peer, each), each, key=_median_rate)
    return list(fastest.values())


def _median_rate(contestant: Contestant) -> float:
    return Spread.of([decode_rate(timings) for timings in contestant.runs]).median
