"""The gain of drafting since everything serves, in a line now and then."""

from __future__ import annotations

import time

from draftwire._sync.client import Client
from draftwire_tools.serve.plan import ServePlan
from draftwire_tools.top.planner_figures import PlannerFigures, planner_figures
from draftwire_tools.top.sample import Sample

FIRST_TOKENS = 500
"""Generated tokens before the first line. The next line comes after four times as many, and so on."""
_GROWTH = 4
_WORTHWHILE = 1.1
"""Speed-up below which a line says what to add."""


class Gain:
    """The gain of a verifier's drafters. Readings are taken from time to time."""

    def __init__(self, client: Client, plan: ServePlan) -> None:
        """client: of the verifier, which must serve. plan: what it serves.

        Raises:
            DraftwireError: the verifier cannot be asked.
        """
        self._client, self._plan = client, plan
        self._begin = self._last = self._read()
        self._due = FIRST_TOKENS

    def news(self) -> str | None:
        """Takes a reading; returns a line if enough has been generated since the last one, otherwise None.

        Raises:
            DraftwireError: the verifier cannot be asked.
        """
        self._last = self._read()
        tokens = self._tokens
        if tokens < self._due:
            return None
        while self._due <= tokens:
            self._due *= _GROWTH
        return self.line()

    def line(self) -> str | None:
        """Returns the gain up to the last reading; None if nothing has been generated."""
        if not self._tokens or not self._last.follows(self._begin):
            return None
        return gain_line(planner_figures(self._last, self._begin), self._tokens, self._plan)

    @property
    def _tokens(self) -> int:
        return self._last.tokens - self._begin.tokens

    def _read(self) -> Sample:
        return Sample(time.monotonic(), self._client.model_info(), [])


def gain_line(figures: PlannerFigures, tokens: int, plan: ServePlan) -> str | None:
    """Returns a line about the gain of drafting, with what to add if it gains about nothing.

    Args:
        figures: of the time in which the tokens were generated.
        tokens: number of generated tokens.
        plan: what is served.
    """
    if figures.tokens_per_sequence is None:
        return None
    told = f"{figures.tokens_per_sequence:.2f} tokens per pass"
    if figures.speed_up is not None:
        told += f", about {figures.speed_up:.2f} times plain decoding"
    told += f" ({tokens} tokens so far)"
    little = figures.tokens_per_sequence if figures.speed_up is None else figures.speed_up
    return f"{told}; {advice(plan)}" if little < _WORTHWHILE else told


def advice(plan: ServePlan) -> str:
    """Returns what to do where drafting gains about nothing."""
    if plan.drafts or any(not each.startswith(("local:ngram", "local:suffix")) for each in plan.local):
        return "these drafts gain about nothing here; draftwire bench compares others"
    return "text that does not repeat itself, such as sampled chat, needs a draft model: add --draft MODEL"
