"""Every stretch of some texts, and how often each token came after it, kept up token by token."""

from __future__ import annotations

import heapq

_MOST_COUNTED = 32
"""Suffixes that a token is counted for, longest first: in a text of one token repeated there are as many as tokens, and
of the shorter ones more are known than is ever asked."""
_MOST_FOLLOWING = 64
"""Where more different tokens came next, none of them is likely, and looking at all of them takes long."""
_BEST = 4


class SuffixAutomaton:
    """A Text (see `lookup.Text`) whose places are its states.

    A state stands for stretches that ended at the same places so far, all suffixes of the longest of them. `link` is
    the state of the longest suffix that ended at other places, too; state 0 is the empty stretch. There are at most
    two states for a token, and adding a token takes constant time on average (Blumer et al., 1985).
    """

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens that were added."""
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        """Of each state's longest stretch."""
        self._count = [0]

    def extend(self, last: int, token: int) -> int:
        """Add a token after a text that ended in state `last`, 0 for a new one; the state it ends in now."""
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
        else:  # another text went on like this
            state = self._stretch(last, token)
        counted = state
        for _ in range(_MOST_COUNTED):
            if counted <= 0:
                break
            self._count[counted] += 1
            counted = link[counted]
        return state

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The state of the longest known suffix after one more token of another text, and its length. `state` and
        `length` tell the same of the text before."""
        while state > 0 and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        known = self.next[state].get(token)
        return (0, 0) if known is None else (known, length + 1)

    def state_of(self, state: int, length: int) -> int:
        """Where a suffix of this length is now that was in `state` once: texts added since may have split that."""
        while state > 0 and length <= self.length[self.link[state]]:
            state = self.link[state]
        return state

    def following(self, where: int) -> list[tuple[int, float, int]]:
        """See Text.following. At the end of a text it is what came after the longest suffix that stands elsewhere."""
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
        """The state of the longest stretch of `state` and a token after it: split off if it shares one with longer
        stretches, which end at the same places no more."""
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
