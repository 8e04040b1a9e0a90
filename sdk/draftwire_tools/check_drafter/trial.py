"""A trial: what is done to the drafter to see whether it keeps one rule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from draftwire_tools.check_drafter.draft_stream import StreamEnded
from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.findings import Breach, Skip

Action = Callable[[DrafterUnderTest], Awaitable[str | None]]
"""Tries the rule; returns a remark or None. Raises Breach, Skip or StreamEnded."""

_MOST_RUNS = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """An action, and the rule that it decides. Messages that come meanwhile may show that other rules are broken."""

    rule: str
    action: Action

    async def run(self, drafter: DrafterUnderTest) -> None:
        """Runs the action, again where gRPC lost the status of a stream, and records its finding."""
        runs = 0
        while True:
            runs += 1
            try:
                note = await self.action(drafter)
            except StreamEnded as end:
                if end.unclear and runs < _MOST_RUNS:
                    continue
                drafter.findings.failed(self.rule, str(end))
            except Breach as breach:
                drafter.findings.failed(self.rule, str(breach))
            except Skip as reason:
                drafter.findings.skipped(self.rule, str(reason))
            else:
                drafter.findings.passed(self.rule, note or "")
            return


class Trials(list[Trial]):
    """Trials in the order in which they run."""

    def of(self, rule: str) -> Callable[[Action], Action]:
        """Decorates the action of a rule."""

        def add(action: Action) -> Action:
            self.append(Trial(rule, action))
            return action

        return add
