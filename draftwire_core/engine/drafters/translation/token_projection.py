"""Projects a draft model's probabilities onto the tokens of a target with a different vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwire_core.engine.drafters.translation.token_map import TokenMap

_PRIOR_SINGLE, _PRIOR_LONGER = 1.0, 0.5
"""Prior counts of each draft token: as a whole token, and as the beginning of all longer target tokens together."""
_OPEN_SHARE = 0.03
"""A draft token is taken to be a whole token if a smaller share of its uses than this begins a longer target token."""


@dataclass(frozen=True, slots=True)
class _Group:
    """The target tokens that begin with a draft token and are longer than it."""

    tokens: Tensor
    places: Tensor
    """Index of each token among all target tokens that are spelled with several draft tokens."""
    seconds: Tensor
    """The second draft token of each token."""


class TokenProjection:
    """Spreads the probability of each draft token over the target tokens that begin with it.

    A draft token that stands for one or more target tokens counts for the first of them. But the target may have longer
    tokens that begin with it: `(` may be a whole token or the beginning of `(self`. The frequency of each case is
    learned from committed tokens, and the draft model's prediction after that draft token settles it (`refine`). Target
    tokens that begin with the same two draft tokens share their probability by how often each has been committed.
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
        """Learns from committed target tokens."""
        pieces = [(token, self._map.pieces[token]) for token in tokens if token < self._target_size]
        alone = torch.tensor([each[0] for _, each in pieces if len(each) == 1], dtype=torch.int64, device=self._device)
        longer = torch.tensor(
            [self._place[token] for token, each in pieces if len(each) > 1], dtype=torch.int64, device=self._device
        )
        self._alone.index_add_(0, alone, torch.ones(len(alone), device=self._device))
        self._seen.index_add_(0, longer, torch.ones(len(longer), device=self._device))

    def is_open(self, piece: int) -> bool:
        """Whether a draft token may well be the beginning of a longer target token."""
        group = self._groups.get(piece)
        if group is None:
            return False
        seen = float(self._seen[group.places].sum())
        return seen > _OPEN_SHARE * (seen + float(self._alone[piece]))

    def project(self, probabilities: Tensor) -> Tensor:
        """Projects probabilities: [rows, draft vocabulary] -> [rows, target vocabulary]."""
        longer = torch.zeros_like(self._alone).index_add_(0, self._begins, self._seen)
        whole = longer + self._alone
        result = torch.zeros(len(probabilities), self._target_size, device=self._device)
        alone = probabilities * (self._alone / whole)
        result.index_add_(1, self._heads, alone[:, self._covered])
        result[:, self._longer_ids] += probabilities[:, self._begins] * (self._seen / whole[self._begins])
        return result

    def refine(self, probabilities: Tensor, piece: int, after: Tensor) -> Tensor:
        """Projects one row, given the draft model's probabilities `after` draft token `piece`: [target vocabulary]."""
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
        """Returns one row of probabilities after a draft token that was a whole target token: continuations that would
        have made it a longer one are excluded."""
        group = self._groups.get(piece)
        if group is None:
            return probabilities
        result = probabilities.clone()
        result[group.seconds] = 0
        return result / result.sum().clamp(min=1e-9)

    def compound(self, probabilities: Tensor, token: int) -> tuple[int, float] | None:
        """Returns the likeliest draft token that begins with the target's `token` and is longer, with its probability.

        Returns None if there is none, or if `token`'s own draft token is at least as likely.
        """
        longer = self._compound.get(token)
        if longer is None:
            return None
        best, index = probabilities[longer].max(0)
        pieces = self._map.pieces[token]
        if len(pieces) == 1 and float(probabilities[pieces[0]]) >= float(best):
            return None
        return longer[int(index)], float(best)
