"""A suffix automaton: all substrings of some texts, with the frequencies of the tokens after them."""

from __future__ import annotations

import heapq

_MOST_COUNTED = 32
"""Most suffixes for which a token is counted, longest first. A text that repeats one token has as many suffixes as
tokens, and counts of the short ones are plentiful anyway."""
_MOST_FOLLOWING = 64
"""Most distinct next tokens of a useful place: with more of them none is likely, and examining all takes long."""
_BEST = 4


class SuffixAutomaton:
    """A Text (see `lookup.Text`) whose places are its states.

    A state stands for the substrings that have the same end positions so far; they are all suffixes of the longest one.
    `link` is the state of its longest suffix that also ends elsewhere; state 0 is the empty substring. There are at
    most two states per token, and adding a token takes constant time on average (Blumer et al., 1985).
    """

    def __init__(self) -> None:
        self.tokens = 0
        """Number of tokens added."""
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        """Length of each state's longest substring."""
        self._count = [0]

    def extend(self, last: int, token: int) -> int:
        """Appends a token to the text that ends in state `last`, 0 for a new text; returns the state it ends in now."""
        self.tokens += 1
        following, link, length = self.next, self.link, self.length
        known = following[last].get(token)
        if known is None:
            state = self._state({}, -1, length[last] + 1, 0)
            before = last
            while before >= 0 and token not in following[before]:
                following[before][token] = state
                before = link[before]
            link[state] = 0 if before < 0 else self._stretch(before, token)
        else:  # another text continued in this way
            state = self._stretch(last, token)
        counted = state
        for _ in range(_MOST_COUNTED):
            if counted <= 0:
                break
            self._count[counted] += 1
            counted = link[counted]
        return state

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Returns the state and the length of the longest known suffix after one more token of another text.

        `state` and `length` describe the longest known suffix before that token.
        """
        while state > 0 and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        known = self.next[state].get(token)
        return (0, 0) if known is None else (known, length + 1)

    def state_of(self, state: int, length: int) -> int:
        """Returns the present state of a suffix once in `state`, which texts added since may have split. length: its
        length."""
        while state > 0 and length <= self.length[self.link[state]]:
            state = self.link[state]
        return state

    def following(self, where: int) -> list[tuple[int, float, int]]:
        """Returns the likeliest next tokens at a state; at the end of a text, those after its longest recurring
        suffix."""
        while not self.next[where] and where > 0:
            where = self.link[where]
        after = self.next[where]
        if where == 0 or len(after) > _MOST_FOLLOWING:
            return []
        count = self._count
        seen = [(count[state], token, state) for token, state in after.items()]
        total = sum(times for times, _, _ in seen)
        best = heapq.nlargest(_BEST, seen) if len(seen) > 1 else seen
        return [(token, times / total, state) for times, token, state in best]

    def _stretch(self, state: int, token: int) -> int:
        """Returns the state of the longest substring of `state` followed by a token.

        If that substring shares its state with longer ones, it is split off, since their end positions now differ.
        """
        following, link, length = self.next, self.link, self.length
        shared = following[state][token]
        if length[shared] == length[state] + 1:
            return shared
        split = self._state(dict(following[shared]), link[shared], length[state] + 1, self._count[shared])
        link[shared] = split
        while state >= 0 and following[state].get(token) == shared:
            following[state][token] = split
            state = link[state]
        return split

    def _state(self, following: dict[int, int], link: int, length: int, count: int) -> int:
        self.next.append(following)
        self.link.append(link)
        self.length.append(length)
        self._count.append(count)
        return len(self.next) - 1
