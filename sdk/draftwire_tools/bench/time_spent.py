"""The time that services spend by phase while a method is measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from draftwire._async.client import AsyncClient
from draftwire._types.step_times import StepTimes
from draftwire.errors import DraftwireError
from draftwire_tools.bench.method import Method

_SECONDS = 5.0
"""Timeout of a call to a drafter service."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The times of all services involved, at one moment."""

    verifier: StepTimes
    """The verifier's times."""
    drafters: tuple[StepTimes, ...] | None
    """Times of the method's drafter services; None if one of them cannot be reached from here."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds between two readings."""

    drafting: float | None
    """Seconds of drafting, at the verifier and at drafter services; None if not all of it could be read."""
    rollback: float
    """Seconds of rollbacks at the verifier."""
    verifier: float
    """Busy seconds of the verifier's thread, without waiting."""

    @classmethod
    def between(cls, first: Reading, last: Reading) -> TimeSpent:
        """Returns the time between two readings of the same services."""
        drafting: float | None = None
        if first.drafters is not None and last.drafters is not None:
            services = [b.busy - a.busy for a, b in zip(first.drafters, last.drafters, strict=True)]
            drafting = sum(services) + last.verifier.draft - first.verifier.draft
        return cls(drafting, last.verifier.rollback - first.verifier.rollback, last.verifier.busy - first.verifier.busy)


class TimeReader:
    """Reads the times of services. A drafter service that cannot be reached from here is reported once."""

    def __init__(self, client: AsyncClient) -> None:
        """Creates a reader that uses this client."""
        self._client = client
        self._unreadable: set[str] = set()

    async def read(self, method: Method) -> Reading:
        """Reads the times of the services that a method uses.

        Raises:
            DraftwireError: the verifier does not answer.
        """
        found = [times for address in method.services if (times := await self._drafter_times(address)) is not None]
        verifier = (await self._client.model_info()).engine.times
        return Reading(verifier, tuple(found) if len(found) == len(method.services) else None)

    async def _drafter_times(self, address: str) -> StepTimes | None:
        if address in self._unreadable:
            return None
        try:
            return (await self._client.drafters.load_state(address, timeout=_SECONDS)).times
        except DraftwireError as error:
            self._unreadable.add(address)
            print(f"draftwire: no times of the drafter at {address}: {error}", file=sys.stderr)
            return None
