"""Membership of the pool: drafters are attached and detached by calls, or register themselves by heartbeats."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from draftwire.v1.drafter_pool_service_pb2 import Drafter as DrafterMessage
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.pool.announcing.announcement_rules import (
    AnnouncementRules,
    check_address_owner,
    check_announcer,
    check_dismissed,
)
from draftwire_core.pool.announcing.drafter_fields import is_local, read_name, read_service_address
from draftwire_core.pool.announcing.heartbeats import Heartbeats
from draftwire_core.pool.announcing.leases import Leases
from draftwire_core.pool.changes.drafter_factory import DrafterFactory
from draftwire_core.pool.changes.pool_operations import PoolOperations
from draftwire_core.pool.changes.rollouts import Rollouts
from draftwire_core.pool.changes.swap import empty
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.routing.drafting import Drafting
from draftwire_core.pool.routing.roster import PoolWatch, Roster, check_address
from draftwire_core.runtime.errors import not_found
from draftwire_core.runtime.process.address import place_of
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.security.caller import Caller

log = get_logger(__name__)


@dataclass(slots=True)
class _Attempt:
    """An attachment in progress: what its first call found, and the calls that wait for it."""

    new: bool
    """Whether the drafter was made for the attachment."""
    given: bool
    leased: bool
    left: float | None = None
    """Seconds that were left of the lease that the attachment has ended; None if it has ended none."""
    calls: int = 0


class Membership:
    """Adds drafters to the pool and removes them. Used in the event loop only."""

    def __init__(
        self,
        roster: Roster,
        drafting: Drafting,
        rollouts: Rollouts,
        operations: PoolOperations,
        factory: DrafterFactory,
        watch: PoolWatch,
        tasks: BackgroundTasks,
        trusted: Collection[str],
        announcements: AnnouncementRules,
    ) -> None:
        """trusted: addresses whose drafters are trusted, regardless of the caller that attaches them. announcements:
        the rules for accepting announcements."""
        self._roster = roster
        self._drafting = drafting
        self._rollouts = rollouts
        self._operations = operations
        self._factory = factory
        self._watch = watch
        self._tasks = tasks
        self._trusted = frozenset(trusted)
        self._announcements = announcements
        self._heartbeats = Heartbeats(self._fell_silent)
        self._leases = Leases(self._lease_ended)
        self._attempts: dict[PooledDrafter, _Attempt] = {}

    def read_address(self, field: str, address: str) -> str:
        """Returns the canonical form of the address in a request's field. Raises ServiceError."""
        return self._factory.read(field, address)

    async def attach(
        self,
        address: str,
        name: str,
        labels: Mapping[str, str] | None = None,
        trusted: bool | None = None,
        lease: float | None = None,
    ) -> PooledDrafter:
        """Attaches a drafter and waits until it is ready. Raises ServiceError; a new drafter is then not attached, and
        another one has the lease that it had, unless another call attaches the same drafter meanwhile.

        lease: seconds after which the drafter is detached unless the lease is renewed; it does not shorten another
        attachment. Infinity attaches for good, and ends a lease. None leaves a lease as it is.
        """
        name = name or self.read_address("address", address)
        before, leased = self._roster.get(name), name in self._leases
        given = before is not None and before.given
        drafter = self.add(address, name, labels, trusted)
        attempt = self._attempts.setdefault(drafter, _Attempt(before is None, given, leased))
        attempt.calls += 1
        if lease == math.inf and name in self._leases:
            attempt.left = self._leases.end(name)
        elif lease is not None and (leased or not given):
            self._leases.renew(name, lease)
        drafter.announcer = self._heartbeats.welcome(name) or drafter.announcer
        try:
            await drafter.wait_ready()
        finally:
            attempt.calls -= 1
            if drafter.ready:
                self._attempts.pop(drafter, None)
            elif not attempt.calls and self._attempts.pop(drafter, None) is attempt:
                self._take_back(drafter, attempt)
        return drafter

    def _take_back(self, drafter: PooledDrafter, attempt: _Attempt) -> None:
        """Restores what an attachment found, after the last call that waited for it has failed."""
        name = drafter.name
        if self._roster.get(name) is not drafter:
            return  # it has left meanwhile, and the lease of the name may be another drafter's
        if attempt.left is not None:
            self._leases.renew(name, attempt.left)
        elif not attempt.leased:
            self._leases.end(name)
            drafter.given = attempt.given
        if attempt.new:
            self._remove(drafter)

    def renew(self, address: str, name: str, lease: float) -> PooledDrafter | None:
        """Renews the lease of a drafter. Returns the drafter if it is attached. Raises ServiceError (NOT_FOUND) if
        neither it nor its lease is known, also if it is about to leave."""
        name = read_name("name", name) or self.read_address("address", address)
        if name in self._leases:
            self._leases.renew(name, lease)
            return self._roster.get(name)
        drafter = self._roster.named(name)
        if drafter.state == DrafterState.DRAFTER_STATE_DRAINING:
            raise not_found(ErrorReason.ERROR_REASON_DRAFTER_NOT_FOUND, f"the drafter {name!r} is being detached")
        return drafter

    def add(
        self, address: str, name: str = "", labels: Mapping[str, str] | None = None, trusted: bool | None = None
    ) -> PooledDrafter:
        """Attaches a drafter without waiting. The same name and address return the same drafter.

        trusted: None leaves the drafter's trust unchanged.

        Raises ServiceError if the verifier does not support this form of address, the name belongs to another address,
        or the pool is full.
        """
        drafter = self._enter(self.read_address("address", address), read_name("name", name), labels)
        drafter.given = True
        if trusted is not None:
            self._trust(drafter, trusted)
        return drafter

    def register(
        self,
        address: str,
        name: str,
        leaving: bool,
        labels: Mapping[str, str] | None = None,
        caller: Caller | None = None,
    ) -> bool:
        """Takes an announcement of a drafter: its arrival, a heartbeat, or its departure (`leaving`).

        caller: the owner of the announcement's token; None if tokens are not required. Returns whether anything
        changed; a heartbeat changes nothing. Raises ServiceError.
        """
        address = read_service_address("address", address)
        self._announcements.check(address)
        name = read_name("name", name) or address
        drafter = self._roster.get(name)
        if drafter is not None:
            check_address(drafter, address)
            check_announcer(drafter, caller, leaving=leaving)
        elif self._heartbeats.is_dismissed(name):
            check_dismissed(name, self._heartbeats.dismissed_announcer(name), caller)
        elif not leaving:
            for other in self._roster.members:
                if place_of(other.address) == place_of(address):
                    check_address_owner(other, caller)
        if leaving:
            self._heartbeats.stop(name)
            if drafter is not None:
                self._withdraw(drafter, f"leave of {name}")
            return True
        before, first = self._watch.version, False
        if not self._heartbeats.is_dismissed(name):
            drafter = self._enter(address, name, labels)
            first = not drafter.announced
            drafter.announced = True
            drafter.announcer = drafter.announcer if caller is None else caller.name
        self._heartbeats.beat(name)
        return first or self._watch.version != before

    def detach(self, drafter: PooledDrafter) -> DrafterMessage:
        """Dismisses a drafter, and ends its lease. Returns its last state."""
        self._leases.end(drafter.name)
        return self.dismiss(drafter)

    def dismiss(self, drafter: PooledDrafter) -> DrafterMessage:
        """Releases a drafter that was detached or replaced; its heartbeats do not bring it back. Returns its last
        state."""
        self._heartbeats.dismiss(drafter.name, drafter.announcer)
        return self._remove(drafter)

    def shut_down(self) -> None:
        """Releases all drafters."""
        self._heartbeats.shut_down()
        self._leases.shut_down()
        for drafter in self._roster.alive:
            self._remove(drafter)

    def _enter(self, address: str, name: str, labels: Mapping[str, str] | None) -> PooledDrafter:
        name = name or address
        drafter, new = self._roster.enter(name, address, lambda: self._factory.make(name, address))
        relabelled = bool(labels) and drafter.labels != labels
        if labels and relabelled:
            drafter.labels = dict(labels)
            self._drafting.recheck(drafter)
        if new and address in self._trusted:
            drafter.trusted = True
        if new or relabelled:
            self._watch.notify()
        return drafter

    def _trust(self, drafter: PooledDrafter, trusted: bool) -> None:
        """Sets a drafter's trust. Without trust, its requests with the rejection rule go to other drafters."""
        if trusted != drafter.trusted and not is_local(drafter.address):
            drafter.trusted = trusted
            self._drafting.recheck(drafter)
            self._watch.notify()

    def _remove(self, drafter: PooledDrafter) -> DrafterMessage:
        described = self._roster.describe(drafter)
        if self._roster.end(drafter):
            self._drafting.abandon(drafter)
            self._rollouts.removed(drafter.name)
            self._watch.notify()
        return described

    def _drain(self, drafter: PooledDrafter, task: str) -> None:
        """Opens no more sequences with a drafter, and begins a task, with a name, that removes it."""
        drafter.drain()
        self._tasks.spawn(self._leave(drafter), name=task)

    async def _leave(self, drafter: PooledDrafter) -> None:
        """Moves the sequences off a drafter that leaves by itself, and removes it. An operation in progress on the
        drafter ends first, or fails because the drafter is gone."""

        async def work() -> None:
            await empty(self._drafting, drafter)
            self._remove(drafter)

        await self._operations.wait_until_free(drafter.name)
        if self._roster.get(drafter.name) is drafter:
            await self._operations.run(("leave", drafter.name), [drafter.name], work)

    def _fell_silent(self, name: str) -> None:
        """Withdraws a drafter whose heartbeats have stopped."""
        drafter = self._roster.get(name)
        if drafter is not None:
            log.warning("heartbeat missed", drafter=name)
            self._withdraw(drafter, f"expiry of {name}")

    def _withdraw(self, drafter: PooledDrafter, task: str) -> None:
        """Removes a drafter that no longer announces itself, by a task with a name, unless it was also attached by a
        call or a setting: any token may be the first to announce one."""
        if drafter.given:
            drafter.announced, drafter.announcer = False, None
            self._watch.notify()
        else:
            self._drain(drafter, task)

    def _lease_ended(self, name: str) -> None:
        """Detaches a drafter whose lease has ended, unless it announces itself."""
        drafter = self._roster.get(name)
        if drafter is None:
            return
        log.info("lease ended", drafter=name)
        if drafter.announced:
            drafter.given = False
        else:
            self._drain(drafter, f"end of the lease of {name}")
