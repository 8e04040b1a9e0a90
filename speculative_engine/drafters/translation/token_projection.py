"""A draft model's probabilities as those of the target's tokens, where the two have other vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculative_engine.drafters.translation.token_map import TokenMap

_PRIOR_SINGLE, _PRIOR_LONGER = 1.0, 0.5
"""What is taken to have been seen of each draft token, alone and as the beginning of longer tokens together."""
_OPEN_SHARE = 0.03
"""A draft token that begins a longer token of the target less often than this is taken to stand alone."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The target's tokens that are longer than a draft token and begin with it."""

    tokens: Tensor
    places: Tensor
    """Of the tokens among all that are spelled with several."""
    seconds: Tensor
    """The draft token that comes second in each."""


class TokenProjection:
    """Spreads the probability of each draft token over the tokens of the target that begin with it.

    A draft token that has a counterpart, or is longer than any, counts for the first token of the target in it. But the
    target may have longer tokens that begin with it: `(` may be the whole token or the beginning of `(self`. How often
    it is which is learned from the committed tokens, and settled by what the draft model says after that draft token
    (`refine`). Two tokens of the target that begin with the same two draft tokens share by how often they came.
    """

    def __init__(self, token_map: TokenMap, device: torch.device):
        self._map = token_map
        self._device = device
        draft_size, target_size = len(token_map.draft), len(token_map.target)
        covered = [(token, covers[0]) for token, covers in enumerate(token_map.covers) if covers]
        self._covered = torch.tensor([token for token, _ in covered], device=device)
        self._heads = torch.tensor([head for _, head in covered], device=device)
        self._longer = [token for token, pieces in enumerate(token_map.pieces) if len(pieces) > 1]
        self._longer_ids = torch.tensor(self._longer, dtype=torch.int64, device=device)
        self._begins = torch.tensor(
            [token_map.pieces[token][0] for token in self._longer], dtype=torch.int64, device=device
        )
        groups: dict[int, list[int]] = {}
        for place, token in enumerate(self._longer):
            groups.setdefault(token_map.pieces[token][0], []).append(place)
        self._groups = {
            piece: _Group(
                self._longer_ids[places],
                torch.tensor(places, device=device),
                torch.tensor([token_map.pieces[self._longer[place]][1] for place in places], device=device),
            )
            for piece, places in groups.items()
        }
        self._place = {token: place for place, token in enumerate(self._longer)}
        self._compound: dict[int, list[int]] = {}
        for token, covers in enumerate(token_map.covers):
            if len(covers) > 1:
                self._compound.setdefault(covers[0], []).append(token)
        self._alone = torch.full((draft_size,), _PRIOR_SINGLE, device=device)
        sizes = torch.bincount(self._begins, minlength=draft_size)
        self._seen = _PRIOR_LONGER / sizes[self._begins]
        self._target_size = target_size

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn from committed tokens of the target."""
        pieces = [(token, self._map.pieces[token]) for token in tokens if token < self._target_size]
        alone = torch.tensor([each[0] for _, each in pieces if len(each) == 1], dtype=torch.int64, device=self._device)
        longer = torch.tensor(
            [self._place[token] for token, each in pieces if len(each) > 1], dtype=torch.int64, device=self._device
        )
        self._alone.index_add_(0, alone, torch.ones(len(alone), device=self._device))
        self._seen.index_add_(0, longer, torch.ones(len(longer), device=self._device))

    def is_open(self, piece: int) -> bool:
        """Whether a draft token may well be the beginning of a longer token."""
        group = self._groups.get(piece)
        if group is None:
            return False
        seen = float(self._seen[group.places].sum())
        return seen > _OPEN_SHARE * (seen + float(self._alone[piece]))

    def project(self, probabilities: Tensor) -> Tensor:
        """[rows, draft vocabulary] to [rows, target's vocabulary]."""
        longer = torch.zeros_like(self._alone).index_add_(0, self._begins, self._seen)
        whole = longer + self._alone
        result = torch.zeros(len(probabilities), self._target_size, device=self._device)
        alone = probabilities * (self._alone / whole)
        result.index_add_(1, self._heads, alone[:, self._covered])
        result[:, self._longer_ids] += probabilities[:, self._begins] * (self._seen / whole[self._begins])
        return result

    def refine(self, probabilities: Tensor, piece: int, after: Tensor) -> Tensor:
        """As `project`, of one row, knowing the draft model's probabilities `after` a draft token: [target's]."""
        rest = probabilities.clone()
        rest[piece] = 0
        result = self.project(rest.unsqueeze(0))[0]
        group = self._groups[piece]
        seconds, seen = group.seconds, self._seen[group.places]
        alike = torch.zeros_like(self._alone).index_add_(0, seconds, seen)
        result[group.tokens] += probabilities[piece] * after[seconds] * seen / alike[seconds]
        covers = self._map.covers[piece]
        if covers:
            result[covers[0]] += probabilities[piece] * (1 - after[seconds.unique()].sum()).clamp(min=0)
        return result

    def without_longer(self, probabilities: Tensor, piece: int) -> Tensor:
        """One row of probabilities after a draft token, knowing that it was a token of the target on its own: what
        would have made a longer one does not come."""
        group = self._groups.get(piece)
        if group is None:
            return probabilities
        result = probabilities.clone()
        result[group.seconds] = 0
        return result / result.sum().clamp(min=1e-9)

    def compound(self, probabilities: Tensor, token: int) -> tuple[int, float] | None:
        """The likeliest draft token that is longer than `token` of the target and begins with it, and its probability,
        if that is more than that of the draft token that stands for `token`."""
        longer = self._compound.get(token)
        if longer is None:
            return None
        best, index = probabilities[longer].max(0)
        pieces = self._map.pieces[token]
        if len(pieces) == 1 and float(probabilities[pieces[0]]) >= float(best):
            return None
        return longer[int(index)], float(best)
