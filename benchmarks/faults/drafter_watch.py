"""Times at which a verifier notices that a drafter is gone, from its WatchDrafters stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.faults.chaos_cluster import Cluster, Injected, Member
from draftwire import DraftwireError


class Change(NamedTuple):
    """A drafter's state at a verifier from some time on."""

    at: float
    """Time of the change in seconds, by time.monotonic."""
    verifier: str
    address: str
    state: str


class DrafterWatch:
    """A watch of the pools of all verifiers of a cluster."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self.changes: list[Change] = []

    async def run(self) -> None:
        """Watches forever."""
        async with asyncio.TaskGroup() as tasks:
            for verifier in self._cluster.verifiers:
                tasks.create_task(self._watch(verifier))

    async def _watch(self, verifier: Member) -> None:
        clock = asyncio.get_running_loop().time
        states: dict[str, str] = {}
        while True:
            try:
                async with verifier.client() as client:
                    async for drafters in client.drafters.watch():
                        now = {drafter.address: drafter.state for drafter in drafters}
                        for address, state in now.items():
                            if states.get(address) != state:
                                self.changes.append(Change(clock(), verifier.name, address, state))
                        states = dict(now)
            except DraftwireError:
                await asyncio.sleep(0.2)  # the verifier is having a fault itself

    def detection_seconds(self, faults: Sequence[Injected]) -> dict[str, list[float]]:
        """Returns, by kind, the seconds from the start of each drafter fault until a verifier that had the drafter
        ready found it unreachable. Faults that ended before any verifier noticed are left out."""
        addresses = {drafter.name: drafter.address for drafter in self._cluster.drafters}
        of_drafters = sorted(
            (i for i in faults if not i.fault.of_verifier and i.member in addresses), key=lambda i: i.start
        )
        found: dict[str, list[float]] = {}
        for index, injected in enumerate(of_drafters):
            later = (other.start for other in of_drafters[index + 1 :] if other.member == injected.member)
            until = min(injected.end + 1.0, next(later, float("inf")))
            for verifier in self._cluster.verifiers:
                noticed = [
                    change.at - injected.start
                    for change in self.changes
                    if change.verifier == verifier.name
                    and change.address == addresses[injected.member]
                    and change.state == "unreachable"
                    and injected.start <= change.at < until
                ]
                found.setdefault(injected.fault.kind, []).extend(noticed[:1])
        return found
