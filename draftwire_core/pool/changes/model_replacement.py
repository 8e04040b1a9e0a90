"""Model replacement: moves a drafter's sequences, make before break, to a new model that its service has loaded."""

from __future__ import annotations

import asyncio

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire_core.pool.changes.drafter_factory import DrafterFactory
from draftwire_core.pool.changes.pool_operations import PoolOperations, What
from draftwire_core.pool.changes.rollouts import Rollouts
from draftwire_core.pool.changes.swap import move_all
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.routing.drafting import Drafting
from draftwire_core.pool.routing.roster import PoolWatch, Roster
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.tasks import BackgroundTasks

log = get_logger(__name__)


class ModelReplacements:
    """Follows drafters to their new models: one replacement at a time per drafter, and none during another operation.
    Used in the event loop only."""

    def __init__(
        self,
        roster: Roster,
        drafting: Drafting,
        operations: PoolOperations,
        rollouts: Rollouts,
        factory: DrafterFactory,
        watch: PoolWatch,
        tasks: BackgroundTasks,
    ) -> None:
        self._roster = roster
        self._drafting = drafting
        self._operations = operations
        self._tasks = tasks
        self._rollouts = rollouts
        self._factory = factory
        self._watch = watch
        self._following: set[PooledDrafter] = set()

    def begin(self, drafter: PooledDrafter, delay: float) -> None:
        """Starts following a drafter whose new streams get another model. delay: seconds to wait first."""
        if self._roster.get(drafter.name) is drafter and drafter not in self._following:
            self._following.add(drafter)
            self._tasks.spawn(self._follow(drafter, delay), name=f"new model of {drafter.name}")

    async def _follow(self, drafter: PooledDrafter, delay: float) -> None:
        name = drafter.name
        try:
            await asyncio.sleep(delay)
            await self._operations.wait_until_free(name)
            # A drafter that was lost meanwhile gets the new model when it reconnects.
            if self._roster.get(name) is drafter and drafter.ready:
                await self._operations.run(replacement_of(name), [name], lambda: self._replace(drafter))
        except ServiceError as error:
            log.warning("new model refused", drafter=name, address=drafter.address, reason=error.message)
            drafter.show_error(error)
        finally:
            self._following.discard(drafter)

    async def _replace(self, old: PooledDrafter) -> None:
        """Opens a second stream to a drafter, moves the drafter's name and sequences to it, and ends the first.

        Raises ServiceError if the second stream does not become ready; the first one then stays.
        """
        new = self._factory.make(old.name, old.address)
        self._roster.start(new)
        taken = False
        try:
            await new.wait_ready()
            # Neither released meanwhile nor about to leave: its removal would leave the new one in the pool.
            taken = self._roster.get(old.name) is old and old.state != DrafterState.DRAFTER_STATE_DRAINING
        finally:
            if not taken:
                self._roster.end(new)
        if not taken:
            return
        new.inherit(old)
        self._roster.succeed(old, new)
        moves = await move_all(self._drafting, old, new)
        self._drafting.abandon(old)
        self._roster.end(old)
        self._drafting.refill()  # with requests that the old model refused
        log.info("model replaced", drafter=new.name, moves={how.name: count for how, count in moves.items()})
        self._rollouts.restart(new.name)
        self._watch.notify()


def replacement_of(name: str) -> What:
    """Returns the key of a model replacement among the pool's operations."""
    return ("new model of", name)
