"""Few combinations of options in which each value of each option meets each value of each other one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

Combination = dict[str, str]
"""A value for each option."""
_Pair = frozenset[tuple[str, str]]


def pairwise(options: Mapping[str, Sequence[str]]) -> list[Combination]:
    """Returns the combinations, always the same ones. Each begins with a pair that is still missing, and takes for the
    other options the values that bring the most missing pairs."""
    missing = dict.fromkeys(all_pairs(options))  # in order, as a set would not be
    found = []
    while missing:
        chosen = dict(next(iter(missing)))
        for name in options:
            if name not in chosen:
                chosen[name] = max(
                    options[name], key=lambda value: sum(pair in missing for pair in _pairs_with(name, value, chosen))
                )
        for pair in pairs_of(chosen):
            missing.pop(pair, None)
        found.append({name: chosen[name] for name in options})
    return found


def all_pairs(options: Mapping[str, Sequence[str]]) -> Iterator[_Pair]:
    """Yields each value of each option with each value of each other one."""
    for one, other in combinations(options, 2):
        for values in product(options[one], options[other]):
            yield frozenset(zip((one, other), values, strict=True))


def pairs_of(combination: Combination) -> Iterator[_Pair]:
    """Yields the pairs that meet in a combination."""
    return map(frozenset, combinations(combination.items(), 2))


def _pairs_with(name: str, value: str, chosen: Combination) -> Iterator[_Pair]:
    return (frozenset({(name, value), each}) for each in chosen.items())
