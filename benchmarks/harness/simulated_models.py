"""A simulated target and draft model that agree with a given probability."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

VOCABULARY = 1 << 20

Place = tuple[int | None, list[float]]
"""The draft's candidates at a position of a text: the index of the right one, None if there is none, and their natural
log probabilities."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Simulated agreement of a draft model with its target."""

    by_rank: tuple[float, ...] = (0.75, 0.1325, 0.0475)
    """Probability that the target's token is the draft's first, second, ... candidate. Coupled sampling of synthetic
    pairs at temperature 1 leaves 53 % of what the first misses to the second and 19 % to the third."""
    concentration: float = 2.0
    """Similarity of positions: the first candidate's probability at a position is drawn from Beta(c a, c (1 - a)). A
    small number means nearly certain positions beside nearly hopeless ones, as in real text."""
    noise: float = 0.5
    """Standard deviation, in log-odds, of the draft model's reported probability for its first candidate."""

    def __post_init__(self) -> None:
        if not self.by_rank or not 0 < self.by_rank[0] < 1 or min(self.by_rank) < 0 or sum(self.by_rank) > 1 + 1e-9:
            raise ValueError(f"by_rank: {self.by_rank} are not the chances of exclusive events, the first above 0")
        if self.concentration <= 0 or self.noise < 0:
            raise ValueError("concentration has to be above 0, noise at least 0")

    @classmethod
    def of(cls, first: float) -> Agreement:
        """Returns the agreement for a first candidate that is right with this probability, and two others with the
        usual shares of the rest, but no likelier than the first allows."""
        left = min(first, 1 - first)
        return cls((first, 0.53 * left, 0.19 * left))


class ModelPair:
    """One sequence of the target's tokens, with the draft model's candidates at each position.

    Candidates on the target's path depend on seed and position alone, so every policy meets the same text.
    """

    def __init__(self, agreement: Agreement | Sequence[Place], length: int, seed: str):
        """agreement: how often the models agree, or a real draft model's candidates at the positions of a real text,
        from the first new token on. length: tokens of the text."""
        rng = random.Random(seed)
        self._agreement = agreement
        self._target = [rng.randrange(VOCABULARY) for _ in range(length + 1)]
        if isinstance(agreement, Agreement):
            self._places = [self._place(rng) for _ in range(length + 1)]
        else:  # the root has no candidates, and what follows the last token is never needed
            self._places = [agreement[0], *agreement, agreement[-1]]
        self._elsewhere = random.Random(f"{seed} elsewhere")

    def target(self, position: int) -> int:
        """Returns the target's token at a position after a path of its own tokens."""
        return self._target[position]

    def draft(self, position: int, on_path: bool) -> tuple[list[int], list[float]]:
        """Returns the draft's candidates for a position, best first, and their natural log probabilities."""
        right, log_probs = self._places[position] if on_path else self._place(self._elsewhere)
        tokens = [(self._target[position] + 1 + rank) % VOCABULARY for rank in range(len(log_probs))]
        if on_path and right is not None:
            tokens[right] = self._target[position]
        return tokens, log_probs

    def _place(self, rng: random.Random) -> Place:
        if not isinstance(self._agreement, Agreement):
            return rng.choice(self._agreement)
        first, *others = self._agreement.by_rank
        chance = rng.betavariate(self._agreement.concentration * first, self._agreement.concentration * (1 - first))
        chance = min(max(chance, 1e-6), 1 - 1e-6)
        drawn, right = rng.random(), None
        reached = 0.0
        for rank, share in enumerate([chance, *((1 - chance) * other / (1 - first) for other in others)]):
            reached += share
            if drawn < reached:
                right = rank
                break
        odds = math.log(chance / (1 - chance)) + rng.gauss(0.0, self._agreement.noise)
        said = 1 / (1 + math.exp(-odds))
        shares = [said, *((1 - said) * other / (1 - first) for other in others)]
        return right, [math.log(max(share, 1e-9)) for share in shares]
