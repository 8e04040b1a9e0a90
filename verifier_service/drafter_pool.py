"""The drafters of a verifier: how they come, change places and go while requests run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftwire.v1.drafter_pool_service_pb2 import Drafter, Rollout
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.verdict_pb2 import Verdict
from service_runtime.errors import ServiceError, invalid_field, shutting_down
from service_runtime.logs import get_logger
from service_runtime.tasks import BackgroundTasks
from speculative_engine.step_result import SequenceOutcome
from verifier_service import drafter_description, drafter_swap
from verifier_service.draft_messages import Dropped
from verifier_service.drafter_address import read_address
from verifier_service.drafter_choice import DrafterChoice
from verifier_service.drafter_contact import ready, unreachable
from verifier_service.drafter_link import Connect, DrafterLink
from verifier_service.drafter_rollout import DrafterRollout
from verifier_service.drafting import Drafting
from verifier_service.heartbeats import Heartbeats
from verifier_service.model_replacement import ModelReplacements, replacement_of
from verifier_service.pool_operations import PoolOperations
from verifier_service.rollouts import PROMOTED, Rollouts, check_share
from verifier_service.roster import Roster, check_address
from verifier_service.running_request import RunningRequest
from verifier_service.step_loop import ProposalFault, SequenceProposal, StepLoop

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes of the pool."""

    max_tree_nodes: int
    """Most live nodes of one drafter in a sequence's tree."""
    max_drafters: int = 64
    """Most drafters at once; more are refused."""
    drafters_per_request: int = 1
    """How many drafters draft for a request at once unless it says."""


class DrafterPool:
    """What the service and the verifier call; used in the event loop only.

    `Roster` knows the drafters, `Drafting` who drafts for which request, `PoolOperations` what is being changed.
    """

    def __init__(
        self,
        steps: StepLoop,
        identity: PeerInfo,
        connect: Callable[[str], Connect],
        tasks: BackgroundTasks,
        limits: PoolLimits,
        rng: random.Random | None = None,
    ):
        self._steps = steps
        self._identity = identity
        self._connect = connect
        self._tasks = tasks
        self._choice = DrafterChoice(rng if rng is not None else random.Random())
        self._roster = Roster(steps, tasks, limits.max_drafters)
        self._drafting = Drafting(steps, self._roster, self._choice, limits.max_tree_nodes, limits.drafters_per_request)
        self._operations = PoolOperations(tasks)
        self._rollouts = Rollouts(self._roster, self._drafting, self._withdraw_worse)
        self._heartbeats = Heartbeats(self._fell_silent)
        self._replacements = ModelReplacements(
            self._roster, self._drafting, self._operations, tasks, self._link, self._model_replaced
        )
        self._ending = False
        self._changed = asyncio.Event()
        self.version = 0
        """Number of state changes so far."""

    # Requests

    def check(self, drafter: str | None) -> None:
        """Raise ServiceError if a request names a drafter that is not attached."""
        if drafter is not None:
            self._roster.named(drafter)

    def admit(self, request: RunningRequest) -> None:
        """Draft for a request from now on, if it wants and drafters are ready."""
        self._drafting.admit(request)

    def release(self, request: RunningRequest) -> None:
        """Stop drafting for a request."""
        self._drafting.release(request)
        self._rollouts.forget(request.sequence_id)

    def send_verdicts(self, verdicts: list[Verdict]) -> None:
        """Tell the drafters what a step committed."""
        for link in self._roster:
            link.send_verdicts(verdicts)

    def count(self, outcome: SequenceOutcome) -> None:
        """Count a step's verified and accepted draft tokens."""
        for source, nodes in outcome.drafted.items():
            link = self._roster.find(source)
            if link is not None:
                accepted = outcome.sources.count(source)
                link.stats.draft_tokens += nodes
                link.stats.accepted_tokens += accepted
                link.speed.count_accepted(accepted)
        self._rollouts.count(outcome)

    def count_stale(self, source: str, nodes: int) -> None:
        """Count nodes that came too late."""
        link = self._roster.find(source)
        if link is not None:
            link.stats.stale_nodes += nodes

    def refuse(self, fault: ProposalFault) -> None:
        """A drafter sent a proposal that contradicts itself: another one drafts for that sequence, or none."""
        link = self._roster.find(fault.source)
        if link is not None and link.refuse(fault.sequence_id, fault.epoch, fault.error):
            self._drafting.avoid(fault.sequence_id, link)

    # Drafters

    async def attach(self, address: str, name: str, labels: Mapping[str, str] | None = None) -> DrafterLink:
        """Attach a drafter and wait until it is ready. Raises ServiceError; then it is not attached."""
        known = set(self._roster.members)
        link = self.add(address, name, labels)
        self._heartbeats.welcome(link.name)
        try:
            await ready(link)
        finally:
            if not link.ready and link not in known:
                self._remove(link)
        return link

    def add(self, address: str, name: str = "", labels: Mapping[str, str] | None = None) -> DrafterLink:
        """Attach a drafter without waiting; the same name and address again give the same one.

        Raises ServiceError: the address has no form this verifier serves, the name stands for another address, or
        there are as many drafters as there may be.
        """
        link = self._enter(read_address("address", address), name, labels)
        link.given = True
        return link

    async def detach(self, name: str) -> Drafter:
        """Move a drafter's sequences to others, or leave them to plain decoding, and release it. Raises ServiceError:
        NOT_FOUND, or BUSY. Goes on when the caller is cancelled."""
        await self._operations.after(replacement_of(name))  # nobody asked for it here, so it is no reason to refuse
        link = self._roster.named(name)
        self._rollouts.check_free(name)

        async def work() -> Drafter:
            await drafter_swap.empty(self._drafting, self._roster, self._choice, link)
            return self._dismiss(link)

        described: Drafter = await self._operations.run(("detach", name), [name], work)
        return described

    async def swap(self, old_name: str, new_name: str, request_id: str = "") -> tuple[DrafterLink, int]:
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
            self._rollouts.check_free(old_name, new_key)

            async def work() -> tuple[DrafterLink, int]:
                new = await self._attached(new_key, new_name)
                moved = await drafter_swap.swap(self._drafting, old, new)
                self._dismiss(old)
                return new, moved

            operation = self._operations.start(what, [old_name, new_key], work)
        swapped: tuple[DrafterLink, int] = await self._operations.result(operation, request_id)
        return swapped

    def register(self, address: str, name: str, leaving: bool, labels: Mapping[str, str] | None = None) -> None:
        """A drafter announces itself, sends its heartbeat, or takes its leave. Raises ServiceError."""
        address = read_address("address", address)
        name = name or address
        link = self._roster.get(name)
        if link is not None:
            check_address(link, address)
        if leaving:
            self._heartbeats.stop(name)
            if link is not None:
                self._tasks.spawn(self._leave(link), name=f"leave of {name}")
            return
        if not self._heartbeats.is_dismissed(name):
            self._enter(address, name, labels).announced = True
        self._heartbeats.beat(name)

    # Roll-outs

    async def start_rollout(self, old_name: str, new_name: str, share: float) -> Rollout:
        """Give a drafter a share of another one's sequences; again, to change the share. Returns once running
        sequences have moved. Raises ServiceError. Goes on when the caller is cancelled."""
        check_share(share)
        old = self._roster.named(old_name)
        new_key = self._new_drafter(old_name, new_name)
        running = self._rollouts.involving(new_key)
        if running is None or running.old.name != old_name:
            self._rollouts.check_free(old_name, new_key)

        async def work() -> DrafterRollout:
            new = await self._attached(new_key, new_name)
            if not new.ready:
                raise unreachable(new.address)
            return await self._rollouts.begin(old, new, share)

        return self._rollouts.describe_one(
            await self._operations.run(("roll-out", old_name, new_key, share), [old_name, new_key], work)
        )

    async def finish_rollout(self, new_name: str, promote: bool) -> Rollout:
        """Let the new drafter of a roll-out take over, or withdraw it. Raises ServiceError; then the roll-out goes
        on. Goes on when the caller is cancelled."""
        rollout = self._rollouts.of_new(new_name)
        old, new = self._roster.named(rollout.old.name), self._roster.named(new_name)

        async def promoting() -> None:
            await drafter_swap.swap(self._drafting, old, new)
            self._rollouts.end(rollout, PROMOTED, "promoted")
            self._dismiss(old)

        if promote:
            await self._operations.run(("promote", new_name), [old.name, new_name], promoting)
        else:
            await self._operations.run(
                ("withdraw", new_name), [old.name, new_name], lambda: self._withdraw(rollout, "withdrawn")
            )
        return self._rollouts.describe_one(rollout)

    def describe_rollouts(self) -> list[Rollout]:
        """The roll-outs under way, then the last that ended, newest first."""
        return self._rollouts.describe()

    # What it looks like

    def describe(self) -> list[Drafter]:
        """The state of all drafters, oldest first."""
        return [self.describe_one(link) for link in self._roster.members]

    def describe_one(self, link: DrafterLink) -> Drafter:
        """The state of one drafter."""
        return drafter_description.describe(link, self._roster, self._steps)

    async def change_after(self, version: int) -> int:
        """Return the version of the pool's state as soon as it differs from `version`. Raises ServiceError after
        `end_watches`."""
        while self.version == version and not self._ending:
            await self._changed.wait()
        if self._ending:
            raise shutting_down()
        return self.version

    def end_watches(self) -> None:
        """End every wait for a change, present and future: one that lasts for ever would hold up a graceful stop."""
        self._ending = True
        self._changed.set()

    def shut_down(self) -> None:
        """Release all drafters."""
        self._heartbeats.shut_down()
        for link in self._roster.links:
            self._remove(link)

    # LinkOwner

    def link_changed(self, link: DrafterLink) -> None:
        """See LinkOwner."""
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def link_ready(self, link: DrafterLink) -> None:
        """See LinkOwner."""
        self._drafting.welcome(link)

    def link_renewed(self, link: DrafterLink, old_source: str) -> None:
        """See LinkOwner."""
        self._steps.forget(old_source)
        self._rollouts.restart(link.name)

    def link_replaced(self, link: DrafterLink) -> None:
        """See LinkOwner."""
        self._replacements.begin(link)

    def link_proposed(self, link: DrafterLink, proposals: list[SequenceProposal]) -> None:
        """See LinkOwner."""
        self._steps.propose(link.source, proposals)

    def link_dropped(self, link: DrafterLink, sequence_ids: list[int], why: Dropped) -> None:
        """See LinkOwner."""
        self._drafting.dropped(link, sequence_ids, why)

    # Coming and going

    def _link(self, name: str, address: str) -> DrafterLink:
        return DrafterLink(name, address, self._connect(address), self._identity, self)

    def _enter(self, address: str, name: str, labels: Mapping[str, str] | None) -> DrafterLink:
        name = name or address
        link, new = self._roster.enter(name, address, lambda: self._link(name, address))
        relabelled = bool(labels) and link.labels != labels
        if labels and relabelled:
            link.labels = dict(labels)
            self._drafting.refill()
        if new or relabelled:
            self.link_changed(link)
        return link

    def _new_drafter(self, old_name: str, new_name: str) -> str:
        """Name of the drafter that takes over: an attached one's, or what one attached at this address is called."""
        new_key = new_name if self._roster.get(new_name) is not None else read_address("new_name", new_name)
        if new_key == old_name:
            raise invalid_field("new_name", f"is {old_name} itself")
        return new_key

    async def _attached(self, new_key: str, address: str) -> DrafterLink:
        return self._roster.get(new_key) or await self.attach(address, "")

    def _dismiss(self, link: DrafterLink) -> Drafter:
        """Release a drafter that was told to go."""
        self._heartbeats.dismiss(link.name)
        return self._remove(link)

    def _remove(self, link: DrafterLink) -> Drafter:
        described = self.describe_one(link)
        if self._roster.end(link):
            self._drafting.abandon(link)
            self._rollouts.removed(link.name)
            self.link_changed(link)
        return described

    async def _leave(self, link: DrafterLink) -> None:
        """A drafter goes by itself. Whatever is being done with it comes to its end first, or fails for its absence."""

        async def work() -> None:
            await drafter_swap.empty(self._drafting, self._roster, self._choice, link)
            self._remove(link)

        link.drain()
        await self._operations.wait_until_free(link.name)
        if self._roster.get(link.name) is link:
            await self._operations.run(("leave", link.name), [link.name], work)

    def _fell_silent(self, name: str) -> None:
        """A drafter's heartbeats have stopped. One that somebody attached is not theirs to remove."""
        link = self._roster.get(name)
        if link is None:
            return
        log.warning("heartbeat stayed out", drafter=name)
        if link.given:
            link.announced = False
            self.link_changed(link)
        else:
            self._tasks.spawn(self._leave(link), name=f"expiry of {name}")

    def _model_replaced(self, link: DrafterLink) -> None:
        """A drafter has another model, and a link to it."""
        self._rollouts.restart(link.name)
        self.link_changed(link)

    async def _withdraw(self, rollout: DrafterRollout, reason: str) -> None:
        new = self._roster.get(rollout.new.name)
        await self._rollouts.give_back(rollout, reason)
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
