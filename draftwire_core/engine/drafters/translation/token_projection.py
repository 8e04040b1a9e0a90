"""Projects a draft model's probabilities onto the tokens of a target with a different vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.drafters.translation.token_map import MOST_PIECES, TokenMap

_PRIOR_SINGLE, _PRIOR_LONGER = 1.0, 0.5
"""Prior counts of each draft token: as a whole token, and as the beginning of all longer target tokens together."""
_OPEN_SHARE = 0.03
"""A spelling is taken to be a whole token if a smaller share of its uses than this begins a longer target token."""
_UNMERGED = 0.02
"""Share of its probability that a continuation keeps which would have made the token before it a longer one. Tokenizers
that split words, digits or lines before they merge leave some tokens apart."""


class TokenProjection:
    """Spreads the probability of each draft token over the target tokens that begin with it.

    A draft token that stands for one or more target tokens counts for the first of them. But the target may have longer
    tokens that begin with it: `(` may be a whole token or the beginning of `(self`. The frequency of each case is
    learned from committed tokens, and the draft model's predictions after that draft token, and after those that follow
    it in longer target tokens, settle it (`refine`).

    The target tokens that are spelled with several draft tokens are kept in the order of their spellings, so that
    those which begin with the same draft tokens are next to each other.
    """

    def __init__(self, token_map: TokenMap, device: torch.device):
        self._map = token_map
        self._device = device
        self._draft_size, self._target_size = len(token_map.draft), len(token_map.target)
        covered = np.flatnonzero(token_map.covers.counts)
        pieces = token_map.pieces
        longer = np.flatnonzero(pieces.counts > 1)
        table = np.full((len(longer), MOST_PIECES + 1), -1, np.int32)
        for place in range(MOST_PIECES):
            table[:, place] = pieces.nth(place, longer)
        order = np.lexsort(table.T[::-1])
        self._table = table[order]
        """The spelling of each of these tokens, padded with -1."""
        begins = self._table[:, 0].astype(np.int64)
        self._covered = torch.from_numpy(covered).to(device)
        """The draft tokens that stand for any of the target's."""
        self._firsts = torch.from_numpy(token_map.covers.firsts[covered]).to(device)
        """The first of these, for each."""
        self._tokens = torch.from_numpy(longer[order]).to(device)
        """The tokens of the table."""
        source = np.full(self._target_size, self._draft_size, np.int64)
        source[longer[order]] = begins
        self._source = torch.from_numpy(source).to(device)
        """The draft token with which each target token begins that is spelled with several; their number for others."""
        self._starts = np.searchsorted(self._table[:, 0], np.arange(self._draft_size + 1))
        """Place of the first of them that begins with each draft token, and their number."""
        self._place = np.full(self._target_size, -1, np.int64)
        self._place[longer[order]] = np.arange(len(longer))
        compound = np.flatnonzero(token_map.covers.counts > 1)
        heads = token_map.covers.firsts[compound]
        by_head = np.argsort(heads, kind="stable")
        self._compound = torch.from_numpy(compound[by_head]).to(device)
        """The draft tokens that stand for several target tokens, ordered by the first of these."""
        self._compound_starts = np.searchsorted(heads[by_head], np.arange(self._target_size + 1))
        same = pieces.counts[heads] == 1
        self._beyond = torch.from_numpy(compound[same]).to(device)
        """The draft tokens that begin with a shorter one, at which the target's tokenizer splits them."""
        self._begun = torch.from_numpy(pieces.nth(0, heads[same])).to(device)
        """These shorter ones."""
        self._alone = torch.full((self._draft_size,), _PRIOR_SINGLE, dtype=torch.float32, device=device)
        sizes = torch.bincount(self._source, minlength=self._draft_size + 1)
        self._seen = (_PRIOR_LONGER / sizes.float()[self._source]) * (self._source < self._draft_size)
        self._all = self._alone.index_add(0, self._source[self._tokens], self._seen[self._tokens])
        """Counts of each draft token, as a whole token and as the beginning of longer ones."""

    def observe(self, tokens: Sequence[int]) -> None:
        """Learns from committed target tokens."""
        known = np.array([token for token in tokens if token < self._target_size], np.int64)
        firsts, places = self._map.pieces.nth(0, known), self._place[known]
        alone = torch.from_numpy(firsts[(places < 0) & (firsts >= 0)]).to(self._device)
        longer = torch.from_numpy(known[places >= 0]).to(self._device)
        ones = torch.ones(len(known), dtype=torch.float32, device=self._device)
        self._alone.index_add_(0, alone, ones[: len(alone)])
        self._seen.index_add_(0, longer, ones[: len(longer)])
        self._all.index_add_(0, torch.cat([alone, self._source[longer]]), ones[: len(alone) + len(longer)])

    def is_open(self, spelling: Sequence[int]) -> bool:
        """Whether draft tokens may well be the beginning of a longer target token."""
        first, last = self._range(spelling)
        longer = self._longer(first, last, len(spelling))
        if longer == last:
            return False
        seen = float(self._counts(longer, last).sum())
        whole = float(self._alone[spelling[0]]) if len(spelling) == 1 else float(self._counts(first, longer).sum())
        return seen > _OPEN_SHARE * (seen + whole)

    def unsettled(
        self, probabilities: Tensor, spelling: Sequence[int], after: Sequence[Tensor]
    ) -> Sequence[int] | None:
        """Returns the likeliest draft tokens to come next if they may well begin a longer target token, else None.

        A projection divides the probability of such a beginning among the target tokens that begin so, and a draft
        token that is less likely but begins none would come first.

        spelling, after: draft tokens that are known to be among them, and the probabilities after each; see `refine`.
        """
        if not spelling:
            begun: Sequence[int] = (int(probabilities.argmax()),)
            return begun if self.is_open(begun) else None
        first, last = self._range(spelling)
        longer = self._longer(first, last, len(spelling))
        if longer == last:
            return None
        nexts, group, ends = self._nexts(longer, last, len(spelling))
        ending = torch.zeros(len(nexts), dtype=torch.bool, device=self._device).index_fill_(0, group[ends], True)
        then = after[-1][nexts] + torch.where(ending, self._longer_pieces(after[-1], nexts), 0)
        best = int(then.argmax())
        if float(then[best]) < 1 - float(then.sum()):
            return None
        begun = (*spelling, int(nexts[best]))
        return begun if self.is_open(begun) else None

    def project(self, probabilities: Tensor) -> Tensor:
        """Projects probabilities: [rows, draft vocabulary] -> [rows, target vocabulary]."""
        # A token that is spelled with several has a share of the first of them, so most are found by one look.
        per_count = torch.nn.functional.pad(probabilities / self._all, (0, 1))
        result = per_count.index_select(1, self._source).mul_(self._seen)
        whole = per_count.index_select(1, self._covered).mul_(self._alone[self._covered])
        return result.index_add_(1, self._firsts, whole)

    def without(self, projected: Tensor, probabilities: Tensor, piece: int) -> Tensor:
        """Returns one projected row without the probability of one draft token: [target vocabulary].

        probabilities: those that were projected, since when nothing has been learned, [draft vocabulary].
        """
        result = projected.clone()
        first, last = self._range((piece,))
        seen, alone = self._counts(first, last), self._alone[piece]
        share = probabilities[piece] / self._all[piece]
        result[self._tokens[first:last]] -= share * seen
        if covers := self._map.covers[piece]:
            result[covers[0]] -= share * alone
        return result.clamp_(min=0)  # the sums were rounded

    def refine(self, rest: Tensor, probabilities: Tensor, spelling: Sequence[int], after: Sequence[Tensor]) -> Tensor:
        """Projects one row, given the draft model's probabilities after each of the draft tokens `spelling`, which may
        begin a target token: [target vocabulary].

        rest: the projection without the first of them (`without`), which questions about the same row share.
        after: probabilities after the first of them, after the first two, and so on, [draft vocabulary] each.
        """
        result = rest.clone()
        chance = float(probabilities[spelling[0]])
        first, last = self._range(spelling[:1])
        covers = self._map.covers[spelling[0]]
        whole = covers[0] if covers else None
        for length, then in enumerate(after, start=1):
            longer = self._longer(first, last, length)
            if longer > first:
                whole = int(self._tokens[first])
            nexts, group, ends = self._nexts(longer, last, length)
            seen = self._counts(longer, last)
            chances = then[nexts]
            alike = torch.zeros_like(chances).index_add_(0, group, seen)
            ending = torch.zeros_like(chances).index_add_(0, group[ends], seen[ends])
            beyond = torch.where(ending > 0, self._longer_pieces(then, nexts), 0)
            shared = chance * chances[group] * seen / alike[group]
            shared[ends] += chance * (beyond / ending)[group[ends]] * seen[ends]
            if whole is not None:
                result[whole] += chance * (1 - chances.sum() - beyond.sum()).clamp(min=0)
            if length == len(after):
                result[self._tokens[longer:last]] += shared
                break
            chosen = spelling[length]
            others = nexts[group] != chosen
            result[self._tokens[longer:last][others]] += shared[others]
            chance *= float(then[chosen])
            first, last = self._range(spelling[: length + 1])
        return result

    def without_longer(self, probabilities: Tensor, spelling: Sequence[int]) -> Tensor:
        """Returns one row of probabilities after draft tokens that were a whole target token: of continuations that
        would have made it a longer one, little is kept."""
        first, last = self._range(spelling)
        longer = self._longer(first, last, len(spelling))
        if longer == last:
            return probabilities
        result = probabilities.clone()
        result[self._nexts(longer, last, len(spelling))[0]] *= _UNMERGED
        return result / result.sum().clamp(min=1e-9)

    def compound(self, probabilities: Tensor, token: int) -> tuple[int, float] | None:
        """Returns the likeliest draft token that begins with the target's `token` and is longer, with its probability.

        Returns None if there is none, or if the first of `token`'s own draft tokens is at least as likely.
        """
        first, last = self._compound_starts[token], self._compound_starts[token + 1]
        if first == last:
            return None
        longer = self._compound[first:last]
        best, index = probabilities[longer].max(0)
        pieces = self._map.pieces[token]
        if pieces and float(probabilities[pieces[0]]) >= float(best):
            return None
        return int(longer[int(index)]), float(best)

    def _longer_pieces(self, probabilities: Tensor, nexts: Tensor) -> Tensor:
        """Returns, for each of `nexts`, the probability of all longer draft tokens that begin with it and that the
        target's tokenizer splits after it: a line break begins one with an indentation. Same shape as nexts.

        nexts: draft tokens, int64. None of them counts as a longer one, since a target token is spelled with it."""
        others = probabilities.index_fill(0, nexts, 0)
        return torch.zeros_like(probabilities).index_add_(0, self._begun, others[self._beyond])[nexts]

    def _counts(self, first: int, last: int) -> Tensor:
        """Returns how often each token of a range of the table was seen, and its prior count."""
        return self._seen[self._tokens[first:last]]

    def _range(self, spelling: Sequence[int]) -> tuple[int, int]:
        """Returns the places of the tokens whose spelling is or begins with `spelling`: the first, and after the last.

        A single draft token is not among them, since a token is spelled with several.
        """
        first, last = int(self._starts[spelling[0]]), int(self._starts[spelling[0] + 1])
        for place, piece in enumerate(spelling[1:], start=1):
            column = self._table[first:last, place]
            first, last = (first + int(np.searchsorted(column, piece, side)) for side in ("left", "right"))
        return first, last

    def _nexts(self, first: int, last: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the draft tokens that follow the first `length` ones in the tokens of a range, which all begin with
        the same ones and have more; for each token of the range the index among these, int64, and whether it ends
        there."""
        column = torch.from_numpy(self._table[first:last, length].astype(np.int64)).to(self._device)
        nexts, group = torch.unique_consecutive(column, return_inverse=True)  # in this order the table is kept
        ends = torch.from_numpy(self._table[first:last, length + 1] < 0).to(self._device)
        return nexts, group, ends

    def _longer(self, first: int, last: int, length: int) -> int:
        """Returns the place of the first token of a range whose spelling is longer than `length`."""
        return first + int(np.searchsorted(self._table[first:last, length], -1, "right"))
