"""The gain of drafting since everything serves, in a line now and then."""

from __future__ import annotations

from draftwire._sync.client import Client
from draftwire._types.speculation import SpeculationGain
from draftwire_tools.serve.plan import ServePlan

FIRST_TOKENS = 500
"""Generated tokens before the first line. The next line comes after four times as many, and so on."""
_GROWTH = 4
_WORTHWHILE = 1.1
"""Speed-up below which a line says what to add."""


class Gain:
    """The gain of a verifier's drafters. Readings are taken from time to time.

    Requests that are decoded plainly, or draft whatever it costs, do not count: a learner sends such ones.
    """

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
        tokens = self._last.tokens - self._begin.tokens
        if tokens < self._due:
            return None
        while self._due <= tokens:
            self._due *= _GROWTH
        return self.line()

    def line(self) -> str | None:
        """Returns the gain up to the last reading; None if nothing has been generated."""
        return gain_line(self._last.since(self._begin), self._plan)

    def _read(self) -> SpeculationGain:
        return self._client.model_info().engine.gain


def gain_line(gain: SpeculationGain, plan: ServePlan) -> str | None:
    """Returns a line about the gain of drafting, with what to add if it gains about nothing; None if nothing has been
    generated.

    Args:
        gain: of the time in which the tokens were generated.
        plan: what is served.
    """
    if gain.tokens <= 0:
        return None
    told = (
        f"{gain.tokens_per_sequence:.2f} tokens per pass, about {gain.speed_up:.2f} times plain decoding "
        f"({gain.tokens} tokens so far)"
    )
    return f"{told}; {advice(plan)}" if gain.speed_up < _WORTHWHILE else told


def advice(plan: ServePlan) -> str:
    """Returns what to do where drafting gains about nothing."""
    if plan.drafts or any(not each.startswith(("local:ngram", "local:suffix")) for each in plan.local):
        return "these drafts gain about nothing here; draftwire bench compares others"
    return "text that does not repeat itself, such as sampled chat, needs a draft model: add --draft MODEL"
