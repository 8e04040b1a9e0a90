"""Which verifier a request goes to: the one that has its prompt's beginning in its prefix cache, unless it is busy.

Verifiers are ranked for each key by weighted rendezvous hashing, the same in every client and process: a verifier that
comes or goes moves its own share of the keys and no other. The first of the ranking whose load is within a bound over
the mean is taken ("Consistent Hashing with Bounded Loads", Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350).
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
    """How a client spreads its requests over its verifiers."""

    prefix_bytes: int = 256
    """So much of a prompt's beginning decides where it goes: prompts that share it go to the same verifier, where it is
    in the prefix cache. UTF-8 of a text or a conversation; of token ids each counts four bytes. At least 1."""
    load_bound: float = 1.25
    """Most load of a verifier, in shares of the mean that is due to its weight, before requests go elsewhere; at least
    1, which spreads evenly."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a value out of its range.
        """
        if self.prefix_bytes < 1:
            raise ValueError(f"prefix_bytes must be at least 1, got {self.prefix_bytes}")
        if not 1 <= self.load_bound < math.inf:
            raise ValueError(f"load_bound must be a number of at least 1, got {self.load_bound}")


def ranked(key: bytes, verifiers: Sequence[Verifier]) -> list[Verifier]:
    """Return the verifiers in the order in which they are to serve a key; standbys last, in their own order.

    A verifier comes first for a share of all keys that is as large as its weight's of all weights.
    """
    return sorted(verifiers, key=lambda each: _rank(key, each))


def _rank(key: bytes, verifier: Verifier) -> float:
    """The lower the better: an exponential variable with the weight as its rate, by the hash of key and address."""
    if verifier.weight == 0:
        return math.inf
    digest = blake2b(key, digest_size=_HASH_BYTES, key=blake2b(verifier.address.encode(), digest_size=16).digest())
    uniform = (int.from_bytes(digest.digest(), "big") + 0.5) / 2.0 ** (8 * _HASH_BYTES)
    return -math.log(uniform) / verifier.weight


def choose(ranking: Sequence[Verifier], loads: Mapping[str, int], bound: float) -> Verifier:
    """Return the first verifier of a ranking that may take one more request.

    Args:
        ranking: at least one verifier, best first.
        loads: requests at each address.
        bound: most load, this request included, in shares of what is due to a verifier's weight; at least 1.
    """
    weight = sum(each.weight for each in ranking)
    if weight == 0:  # standbys alone: one takes it all
        return ranking[0]
    weighted = [each for each in ranking if each.weight > 0]
    due = bound * (1 + sum(loads[each.address] for each in weighted)) / weight
    # There always is one: with a bound of at least 1 they have room for more requests than there are.
    return next(each for each in weighted if loads[each.address] < math.ceil(due * each.weight))
