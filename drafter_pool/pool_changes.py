"""Changes of the pool that move sequences: a drafter goes, is swapped, or takes another's place by degrees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from drafter_pool import drafter_swap
from drafter_pool.drafter_choice import DrafterChoice
from drafter_pool.drafter_contact import unreachable
from drafter_pool.drafter_rollout import DrafterRollout
from drafter_pool.drafting import Drafting
from drafter_pool.model_replacement import replacement_of
from drafter_pool.pool_member import PoolMember
from drafter_pool.pool_operations import PoolOperations
from drafter_pool.rollouts import PROMOTED, Rollouts, check_share
from drafter_pool.roster import Roster
from draftwire._types.quoting import quoted
from draftwire.v1.drafter_pool_service_pb2 import Drafter, Rollout
from service_runtime.errors import ServiceError, invalid_field
from service_runtime.logs import get_logger

log = get_logger(__name__)


class PoolChanges:
    """What calls ask to be changed while requests run. All of it goes on when the call is cancelled."""

    def __init__(
        self,
        roster: Roster,
        drafting: Drafting,
        choice: DrafterChoice,
        operations: PoolOperations,
        attach: Callable[[str], Awaitable[PoolMember]],
        dismiss: Callable[[PoolMember], Drafter],
        read_address: Callable[[str, str], str],
    ):
        """attach: a drafter by its address, ready. dismiss: release a drafter that has no sequence any more.
        read_address: of a field's name and its value."""
        self.rollouts = Rollouts(roster, drafting, self._withdraw_worse)
        self._roster = roster
        self._drafting = drafting
        self._choice = choice
        self._operations = operations
        self._attach = attach
        self._dismiss = dismiss
        self._read_address = read_address

    async def detach(self, name: str) -> Drafter:
        """Move a drafter's sequences to others, or leave them to plain decoding, and release it. Raises ServiceError:
        NOT_FOUND, or BUSY. Goes on when the caller is cancelled."""
        await self._operations.after(replacement_of(name))  # nobody asked for it here, so it is no reason to refuse
        link = self._roster.named(name)
        self.rollouts.check_free(name)

        async def work() -> Drafter:
            await drafter_swap.empty(self._drafting, self._roster, self._choice, link)
            return self._dismiss(link)

        described: Drafter = await self._operations.run(("detach", name), [name], work)
        return described

    async def swap(self, old_name: str, new_name: str, request_id: str = "") -> tuple[PoolMember, int]:
        """Move every sequence of one drafter to another, make before break, and release the old one.

        new_name: an attached drafter, or an address to attach. Returns the new drafter and how many sequences moved.
        Raises ServiceError; then the old drafter stays. Goes on when the caller is cancelled; a call with the same
        request_id joins it, or gets its result.
        """
        what = ("swap", old_name, new_name)
        operation = self._operations.known(what, request_id)
        if operation is None:
            await self._operations.after(replacement_of(old_name))
            old = self._roster.named(old_name)
            new_key = self._new_drafter(old_name, new_name)
            self.rollouts.check_free(old_name, new_key)

            async def work() -> tuple[PoolMember, int]:
                new = await self._attached(new_key, new_name)
                moved = await drafter_swap.swap(self._drafting, old, new)
                self._dismiss(old)
                return new, moved

            operation = self._operations.start(what, [old_name, new_key], work)
        swapped: tuple[PoolMember, int] = await self._operations.result(operation, request_id)
        return swapped

    async def leave(self, link: PoolMember, remove: Callable[[PoolMember], Drafter]) -> None:
        """A drafter goes by itself: empty it, then have it removed. Whatever is being done with it comes to its end
        first, or fails for its absence."""

        async def work() -> None:
            await drafter_swap.empty(self._drafting, self._roster, self._choice, link)
            remove(link)

        link.drain()
        await self._operations.wait_until_free(link.name)
        if self._roster.get(link.name) is link:
            await self._operations.run(("leave", link.name), [link.name], work)

    async def start_rollout(self, old_name: str, new_name: str, share: float) -> Rollout:
        """Give a drafter a share of another one's sequences; again, to change the share. Returns once running
        sequences have moved. Raises ServiceError. Goes on when the caller is cancelled."""
        check_share(share)
        old = self._roster.named(old_name)
        new_key = self._new_drafter(old_name, new_name)
        running = self.rollouts.involving(new_key)
        if running is None or running.old.name != old_name:
            self.rollouts.check_free(old_name, new_key)

        async def work() -> DrafterRollout:
            new = await self._attached(new_key, new_name)
            if not new.ready:
                raise unreachable(new.address)
            return await self.rollouts.begin(old, new, share)

        return self.rollouts.describe_one(
            await self._operations.run(("roll-out", old_name, new_key, share), [old_name, new_key], work)
        )

    async def finish_rollout(self, new_name: str, promote: bool) -> Rollout:
        """Let the new drafter of a roll-out take over, or withdraw it. Raises ServiceError; then the roll-out goes
        on. Goes on when the caller is cancelled."""
        rollout = self.rollouts.of_new(new_name)
        old, new = self._roster.named(rollout.old.name), self._roster.named(new_name)

        async def promoting() -> None:
            await drafter_swap.swap(self._drafting, old, new)
            self.rollouts.end(rollout, PROMOTED, "promoted")
            self._dismiss(old)

        if promote:
            await self._operations.run(("promote", new_name), [old.name, new_name], promoting)
        else:
            await self._operations.run(
                ("withdraw", new_name), [old.name, new_name], lambda: self._withdraw(rollout, "withdrawn")
            )
        return self.rollouts.describe_one(rollout)

    def _new_drafter(self, old_name: str, new_name: str) -> str:
        """Name of the drafter that takes over: an attached one's, or what one attached at this address is called."""
        attached = self._roster.get(new_name) is not None
        if not attached and ":" not in new_name:  # the likelier mistake is in a name
            raise invalid_field(
                "new_name",
                f"no drafter named {quoted(new_name)} is attached; a new one is given by its address, HOST:PORT or "
                "local:METHOD",
            )
        new_key = new_name if attached else self._read_address("new_name", new_name)
        if new_key == old_name:
            raise invalid_field("new_name", f"is {old_name} itself")
        return new_key

    async def _attached(self, new_key: str, address: str) -> PoolMember:
        return self._roster.get(new_key) or await self._attach(address)

    async def _withdraw(self, rollout: DrafterRollout, reason: str) -> None:
        new = self._roster.get(rollout.new.name)
        await self.rollouts.give_back(rollout, reason)
        if new is not None:
            self._dismiss(new)

    def _withdraw_worse(self, rollout: DrafterRollout) -> None:
        """A new drafter has proved worse; if something else is being done with it, the next sample says so again."""
        drafters = [rollout.old.name, rollout.new.name]
        try:
            self._operations.start(
                ("withdraw", rollout.new.name),
                drafters,
                lambda: self._withdraw(rollout, f"significantly worse: {rollout.verdict()}"),
            )
        except ServiceError:
            log.debug("withdrawal put off", drafter=rollout.new.name)
