"""The choice of a request's verifier: the one likely to have its prompt's beginning cached, unless that one is busy.

Verifiers are ranked for each key by weighted rendezvous hashing, identically in every client and process. A verifier
that comes or goes moves only its own share of the keys. The first verifier of the ranking whose load is within a bound
over the mean is chosen ("Consistent Hashing with Bounded Loads", Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from draftwire._types.verifier import Verifier

_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class SpreadPolicy:
    """Policy by which a client spreads its requests over its verifiers."""

    prefix_bytes: int = 256
    """Number of bytes at the beginning of a prompt that select its verifier, at least 1. Prompts that share them go to
    the same verifier, which has them in its prefix cache. Texts and conversations count in UTF-8, token ids four bytes
    each."""
    load_bound: float = 1.25
    """Highest load of a verifier before requests go elsewhere, relative to the mean load for its weight; at least 1,
    which spreads evenly."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: a value is out of its range.
        """
        if self.prefix_bytes < 1:
            raise ValueError(f"prefix_bytes must be at least 1, got {self.prefix_bytes}")
        if not 1 <= self.load_bound < math.inf:
            raise ValueError(f"load_bound must be a number of at least 1, got {self.load_bound}")


def ranked(key: bytes, verifiers: Sequence[Verifier]) -> list[Verifier]:
    """Returns the verifiers in the order of preference for a key; standbys last, in their own order.

    A verifier ranks first for a share of all keys equal to its share of all weights.
    """
    return sorted(verifiers, key=lambda each: _rank(key, each))


def _rank(key: bytes, verifier: Verifier) -> float:
    """Returns an exponential variable with the weight as its rate, from a hash of key and address; lower is better."""
    if verifier.weight == 0:
        return math.inf
    digest = blake2b(key, digest_size=_HASH_BYTES, key=blake2b(verifier.address.encode(), digest_size=16).digest())
    uniform = (int.from_bytes(digest.digest(), "big") + 0.5) / 2.0 ** (8 * _HASH_BYTES)
    return -math.log(uniform) / verifier.weight


def choose(ranking: Sequence[Verifier], loads: Mapping[str, int], bound: float) -> Verifier:
    """Returns the first verifier of a ranking that may take one more request.

    Args:
        ranking: at least one verifier, best first.
        loads: requests at each address.
        bound: highest load, this request included, relative to the mean load for a verifier's weight; at least 1.
    """
    weight = sum(each.weight for each in ranking)
    if weight == 0:  # only standbys: the first takes every request
        return ranking[0]
    weighted = [each for each in ranking if each.weight > 0]
    due = bound * (1 + sum(loads[each.address] for each in weighted)) / weight
    # There always is one: with a bound of at least 1 the total room exceeds the number of requests.
    return next(each for each in weighted if loads[each.address] < math.ceil(due * each.weight))
