"""The check of one drafter: runs the trials and gathers what they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwire._auth.security import Security
from draftwire._calls.channel import AsyncChannels
from draftwire._calls.error_messages import connection_words
from draftwire.cli.failure import Failure
from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.findings import Findings, Outcome
from draftwire_tools.check_drafter.report import DrafterReport
from draftwire_tools.check_drafter.rule import RULES
from draftwire_tools.check_drafter.trial import Trial
from draftwire_tools.check_drafter.trials import TRIALS
from draftwire_tools.check_drafter.verifier_side import Patience
from draftwire_tools.progress import Stage


async def check(
    address: str,
    patience: Patience,
    *,
    vocab_size: int = 0,
    trials: Sequence[Trial] = TRIALS,
    progress: Stage = lambda rule, done: None,
    **security: Any,
) -> DrafterReport:
    """Checks the drafter at an address.

    Args:
        address: its address.
        patience: how long to wait.
        vocab_size: number of its token ids, if its hello does not say it; 0 for unknown.
        trials: the trials to run. The first one greets the drafter; without its answer the others are not run.
        progress: called with the name of each rule that is tried, and the share of the trials that are done.
        security: of the connection, as for `Security`.

    Raises:
        Failure: there is no connection to the drafter.
    """
    channels = AsyncChannels(Security(**security))
    try:
        found = Findings()
        drafter = DrafterUnderTest(channels.get(address), channels.metadata(), found, patience, vocab_size)
        for place, trial in enumerate(trials):
            progress(trial.rule, place / len(trials))
            await trial.run(drafter)
            if trial is trials[0] and not _passed(found, trial.rule):
                _check_connection(found, address, encrypted=channels.encrypted)
                for rule in RULES:
                    found.skipped(rule, "there was no handshake")
                break
        return DrafterReport(address, drafter.hello, found.all())
    finally:
        await channels.close()


def _passed(findings: Findings, rule: str) -> bool:
    return any(each.rule == rule and each.outcome is Outcome.PASSED for each in findings.all())


def _check_connection(findings: Findings, address: str, *, encrypted: bool) -> None:
    """Raises Failure if the first trial failed for lack of a connection, which says nothing about the drafter."""
    details = findings.all()[0].why.partition("UNAVAILABLE ")[2]
    words = connection_words(details, address, encrypted=encrypted)
    if words is not None:
        raise Failure(words)
