"""How often drafting pays in a thread that has other work: a drafter that is never right is asked seldom."""

from __future__ import annotations

_MEMORY = 128.0
"""Draftings after which older ones have lost most of their weight."""
_PRIOR_TOKENS, _PRIOR_DRAFTINGS = 1.0, 8.0
"""Tokens a drafting is taken to save before anything is known, and how many draftings that counts for."""
_TIMES_MEMORY = 32.0
_MOST_WASTE = 0.02
"""Share of the time that a drafter may take which does not pay: so often it is tried again."""
_MOST_SKIPPED = 1000


class DraftingPace:
    """Weighs what drafting takes against what it saves, by the drafter's own draftings alone.

    A step takes t seconds without drafting and brings one token to a sequence. With d seconds of drafting before it, of
    which a tokens are accepted, (1 + a) / (t + d) > 1 / t where a > d / t.
    """

    def __init__(self) -> None:
        self._tokens, self._draftings = _PRIOR_TOKENS, _PRIOR_DRAFTINGS
        self._draft_seconds = self._step_seconds = 0.0
        self._skipped = 0
        self._ended_at: float | None = None

    def drafted(self, started_at: float, ended_at: float) -> None:
        """A drafting took place."""
        self._draft_seconds = _smoothed(self._draft_seconds, ended_at - started_at)
        self._skipped = 0
        self._ended_at = ended_at

    def brought(self, tokens: int) -> None:
        """Of what was drafted for a sequence, so many tokens were right."""
        self._draftings = min(self._draftings + 1, _MEMORY)
        self._tokens += (tokens - self._tokens) / self._draftings

    def rest(self) -> None:
        """There is nothing to draft for: the time until there is says nothing of a step's."""
        self._ended_at = None

    def pays(self, now: float) -> bool:
        """Whether to draft now; to be asked once a step."""
        if self._ended_at is not None:
            self._step_seconds = _smoothed(self._step_seconds, now - self._ended_at)
        if not self._step_seconds or self._tokens * self._step_seconds >= self._draft_seconds:
            return True
        self._skipped += 1
        self._ended_at = now
        return self._skipped > min(self._draft_seconds / (_MOST_WASTE * self._step_seconds), _MOST_SKIPPED)


def _smoothed(average: float, value: float) -> float:
    return value if not average else average + (value - average) / _TIMES_MEMORY
