"""Changes that move sequences between drafters: detach, swap and rollout."""

from __future__ import annotations

from draftwire._types.quoting import quoted
from draftwire.v1.drafter_pool_service_pb2 import Drafter as DrafterMessage
from draftwire.v1.drafter_pool_service_pb2 import Rollout
from draftwire_core.pool.changes import swap
from draftwire_core.pool.changes.membership import Membership
from draftwire_core.pool.changes.model_replacement import replacement_of
from draftwire_core.pool.changes.pool_operations import PoolOperations
from draftwire_core.pool.changes.rollouts import PROMOTED, DrafterRollout, Rollouts, check_share
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.routing.drafting import Drafting
from draftwire_core.pool.routing.roster import Roster
from draftwire_core.runtime.errors import ServiceError, invalid_field
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


class PoolChanges:
    """Carries out the changes that calls ask for while requests run. A change continues if its call is cancelled."""

    def __init__(
        self,
        roster: Roster,
        drafting: Drafting,
        rollouts: Rollouts,
        operations: PoolOperations,
        membership: Membership,
    ) -> None:
        self._roster = roster
        self._drafting = drafting
        self._rollouts = rollouts
        self._operations = operations
        self._membership = membership

    async def detach(self, name: str) -> DrafterMessage:
        """Moves a drafter's sequences to other drafters or to plain decoding, and releases it. Raises ServiceError
        (NOT_FOUND or BUSY). Continues if the caller is cancelled."""
        await self._operations.after(replacement_of(name))  # no caller started it, so it must not cause BUSY
        drafter = self._roster.named(name)
        self._rollouts.check_free(name)

        async def work() -> DrafterMessage:
            await swap.empty(self._drafting, drafter)
            return self._membership.detach(drafter)

        described: DrafterMessage = await self._operations.run(("detach", name), [name], work)
        return described

    async def swap(self, old_name: str, new_name: str, request_id: str = "") -> tuple[PooledDrafter, int]:
        """Moves every sequence of one drafter to another, make before break, and releases the old one.

        new_name: an attached drafter, or an address to attach. Returns the new drafter and the number of sequences
        moved. Raises ServiceError; the old drafter then stays. Continues if the caller is cancelled; a call with the
        same request_id joins the swap, or gets its result.
        """
        what = ("swap", old_name, new_name)
        operation = self._operations.known(what, request_id)
        if operation is None:
            for name in (old_name, new_name):
                await self._operations.after(replacement_of(name))
            operation = self._operations.known(what, request_id)  # a repeated call may have begun it meanwhile
        if operation is None:
            old = self._roster.named(old_name)
            new_key = self._new_drafter(old_name, new_name)
            self._rollouts.check_free(old_name, new_key)

            async def work() -> tuple[PooledDrafter, int]:
                new = await self._attached(new_key, new_name)
                moved = await swap.swap(self._drafting, old, new)
                self._membership.dismiss(old)
                return new, moved

            operation = self._operations.start(what, [old_name, new_key], work)
        swapped: tuple[PooledDrafter, int] = await self._operations.result(operation, request_id)
        return swapped

    async def start_rollout(self, old_name: str, new_name: str, share: float) -> Rollout:
        """Starts a rollout, which gives a drafter a share of another one's sequences, or changes the share of one in
        progress. Returns once running sequences have moved. Raises ServiceError. Continues if the caller is cancelled.
        """
        check_share(share)
        for name in (old_name, new_name):
            await self._operations.after(replacement_of(name))  # no caller started it, so it must not cause BUSY
        old = self._roster.named(old_name)
        new_key = self._new_drafter(old_name, new_name)
        running = self._rollouts.involving(new_key)
        if running is None or running.old.name != old_name:
            self._rollouts.check_free(old_name, new_key)

        async def work() -> DrafterRollout:
            new = await self._attached(new_key, new_name)
            if not new.ready:
                raise new.unreachable()
            return await self._rollouts.begin(old, new, share)

        return self._rollouts.describe_one(
            await self._operations.run(("rollout", old_name, new_key, share), [old_name, new_key], work)
        )

    async def finish_rollout(self, new_name: str, promote: bool) -> Rollout:
        """Promotes or withdraws the new drafter of a rollout. Raises ServiceError; the rollout then stays in progress.
        Continues if the caller is cancelled."""
        what = ("promote" if promote else "withdraw", new_name)
        operation = self._operations.known(what)  # a withdrawal under way is no longer a rollout in progress
        if operation is None:
            for name in (self._rollouts.of_new(new_name).old.name, new_name):
                await self._operations.after(replacement_of(name))
            operation = self._operations.known(what)  # a repeated call may have begun it meanwhile
        if operation is None:
            rollout = self._rollouts.of_new(new_name)
            old, new = self._roster.named(rollout.old.name), self._roster.named(new_name)

            async def promoting() -> DrafterRollout:
                await swap.swap(self._drafting, old, new)
                self._rollouts.end(rollout, PROMOTED, "promoted")
                self._membership.dismiss(old)
                return rollout

            operation = self._operations.start(
                what, [old.name, new_name], promoting if promote else lambda: self._withdraw(rollout, "withdrawn")
            )
        return self._rollouts.describe_one(await self._operations.result(operation))

    def _new_drafter(self, old_name: str, new_name: str) -> str:
        """Returns the name of the drafter that takes over: an attached drafter's name, or an address in canonical
        form."""
        attached = self._roster.get(new_name) is not None
        if not attached and ":" not in new_name:  # more likely a mistyped name than an address
            raise invalid_field(
                "new_name",
                f"no drafter named {quoted(new_name)} is attached; to attach a new one, give its address, HOST:PORT or "
                "local:METHOD",
            )
        new_key = new_name if attached else self._membership.read_address("new_name", new_name)
        if new_key == old_name:
            raise invalid_field("new_name", f"is {old_name} itself")
        return new_key

    async def _attached(self, new_key: str, address: str) -> PooledDrafter:
        return self._roster.get(new_key) or await self._membership.attach(address, "")

    async def _withdraw(self, rollout: DrafterRollout, reason: str) -> DrafterRollout:
        new = self._roster.get(rollout.new.name)
        await self._rollouts.give_back(rollout, reason)
        if new is not None:
            self._membership.dismiss(new)
        return rollout

    def withdraw_worse(self, rollout: DrafterRollout) -> None:
        """Withdraws a new drafter that has proved worse. Does nothing during another operation on it; the next sample
        triggers the withdrawal again."""
        drafters = [rollout.old.name, rollout.new.name]
        try:
            self._operations.start(
                ("withdraw", rollout.new.name),
                drafters,
                lambda: self._withdraw(rollout, f"significantly worse: {rollout.verdict()}"),
            )
        except ServiceError:
            log.debug("withdrawal deferred", drafter=rollout.new.name)
