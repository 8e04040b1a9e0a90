"""draftwire.v1.DrafterPoolService over gRPC."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2_grpc import DrafterPoolServiceServicer
from draftwire.v1.learning_pb2 import LearningStatus
from draftwire_core.pool.announcing.drafter_fields import read_labels
from draftwire_core.pool.announcing.heartbeats import HEARTBEAT_SECONDS
from draftwire_core.pool.announcing.leases import MOST_LEASE_SECONDS
from draftwire_core.pool.drafter_pool import DrafterPool
from draftwire_core.runtime.errors import invalid_field
from draftwire_core.runtime.rpc.handshake import printable
from draftwire_core.runtime.rpc.interceptors import mark_routine
from draftwire_core.runtime.security.caller import current_caller

_MOST_REASON = 1000
"""Characters that are kept of the reason in a learner's report."""


class DrafterPoolServicer(DrafterPoolServiceServicer):
    """Serves the DrafterPoolService RPCs from the pool; the call interceptor converts errors."""

    def __init__(self, pool: DrafterPool):
        self._pool = pool

    async def AttachDrafter(self, request: pb.AttachDrafterRequest, context: Any) -> pb.AttachDrafterResponse:
        """Attaches a drafter and returns once it is ready, or renews its lease."""
        membership, address = self._pool.membership, _given("address", request.address)
        lease = _lease(request)
        if request.renewal:
            mark_routine()
            if lease is None:
                raise invalid_field("lease", "is missing; a renewal needs one")
            renewed = membership.renew(address, request.name, lease)
            return pb.AttachDrafterResponse(drafter=None if renewed is None else self._pool.roster.describe(renewed))
        labels = read_labels("labels", request.labels)
        trusted = request.trusted if request.HasField("trusted") else None
        drafter = await membership.attach(address, request.name, labels, trusted, math.inf if lease is None else lease)
        return pb.AttachDrafterResponse(drafter=self._pool.roster.describe(drafter))

    async def DetachDrafter(self, request: pb.DetachDrafterRequest, context: Any) -> pb.DetachDrafterResponse:
        """Detaches a drafter and returns its last state."""
        return pb.DetachDrafterResponse(drafter=await self._pool.changes.detach(_given("name", request.name)))

    async def SwapDrafter(self, request: pb.SwapDrafterRequest, context: Any) -> pb.SwapDrafterResponse:
        """Moves a drafter's sequences to another drafter and detaches the first."""
        drafter, moved = await self._pool.changes.swap(
            _given("old_name", request.old_name), _given("new_name", request.new_name), request.request_id
        )
        return pb.SwapDrafterResponse(drafter=self._pool.roster.describe(drafter), moved_sequences=moved)

    async def StartRollout(self, request: pb.StartRolloutRequest, context: Any) -> pb.StartRolloutResponse:
        """Starts a rollout, or changes the share of one in progress."""
        rollout = await self._pool.changes.start_rollout(
            _given("old_name", request.old_name), _given("new_name", request.new_name), request.share
        )
        return pb.StartRolloutResponse(rollout=rollout)

    async def FinishRollout(self, request: pb.FinishRolloutRequest, context: Any) -> pb.FinishRolloutResponse:
        """Promotes or withdraws the new drafter of a rollout."""
        rollout = await self._pool.changes.finish_rollout(_given("new_name", request.new_name), request.promote)
        return pb.FinishRolloutResponse(rollout=rollout)

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Any) -> pb.ListRolloutsResponse:
        """Lists the rollouts in progress and the most recently ended ones."""
        return pb.ListRolloutsResponse(rollouts=self._pool.rollouts.describe())

    async def ListDrafters(self, request: pb.ListDraftersRequest, context: Any) -> pb.ListDraftersResponse:
        """Lists the drafters, oldest first."""
        return pb.ListDraftersResponse(drafters=self._pool.describe())

    async def WatchDrafters(
        self, request: pb.WatchDraftersRequest, context: Any
    ) -> AsyncIterator[pb.WatchDraftersResponse]:
        """Streams the list of drafters, now and after each change."""
        while True:
            version = self._pool.watch.version
            yield pb.WatchDraftersResponse(drafters=self._pool.describe())
            await self._pool.watch.change_after(version)

    async def RegisterDrafter(self, request: pb.RegisterDrafterRequest, context: Any) -> pb.RegisterDrafterResponse:
        """Takes a drafter's announcement: its arrival, a heartbeat, or its departure."""
        labels = read_labels("labels", request.labels)
        address = _given("address", request.address)
        if not self._pool.membership.register(address, request.name, request.leaving, labels, current_caller()):
            mark_routine()  # heartbeats would otherwise dominate the log
        response = pb.RegisterDrafterResponse()
        response.heartbeat_interval.FromNanoseconds(round(HEARTBEAT_SECONDS * 1e9))
        return response

    async def ReportLearning(self, request: pb.ReportLearningRequest, context: Any) -> pb.ReportLearningResponse:
        """Shows a learner's state with its drafter."""
        mark_routine()
        drafter = self._pool.roster.named(_given("drafter_name", request.drafter_name))
        drafter.show_learning(_learning(request.learning))
        return pb.ReportLearningResponse()


def _lease(request: pb.AttachDrafterRequest) -> float | None:
    """Returns the seconds of a request's lease; None if it has none. Raises ServiceError."""
    if not request.HasField("lease"):
        return None
    seconds = request.lease.seconds + request.lease.nanos / 1e9
    if not 0 < seconds <= MOST_LEASE_SECONDS:
        raise invalid_field("lease", f"must be above 0 and at most {MOST_LEASE_SECONDS:g} s, got {seconds:g} s")
    return seconds


def _learning(learning: LearningStatus) -> LearningStatus:
    """Bounds a learner's report, which all who list the drafters get. Raises ServiceError."""
    learning.DiscardUnknownFields()  # type: ignore[attr-defined] # a method of every message, which stubs lack
    if learning.HasField("last_round"):
        last = learning.last_round
        last.reason = printable(last.reason[:_MOST_REASON])
        try:
            last.ended_at.ToDatetime()
        except (ValueError, OverflowError) as error:
            raise invalid_field("learning.last_round.ended_at", f"is no time: {error}") from error
    return learning


def _given(field: str, value: str) -> str:
    if not value:
        raise invalid_field(field, "must not be empty")
    return value
