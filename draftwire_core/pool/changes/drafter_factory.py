"""Factories that make a pool's drafters from their addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire_core.pool.announcing.drafter_fields import is_local, read_service_address
from draftwire_core.pool.drafter.features import FeatureIntake
from draftwire_core.pool.drafter.pooled_drafter import DrafterEvents, PooledDrafter
from draftwire_core.pool.drafter.proposal_sink import ProposalSink
from draftwire_core.pool.drafter.service_drafter import Connect, ServiceDrafter
from draftwire_core.pool.standing.standings import DrafterClocks, DrafterStandings
from draftwire_core.runtime.errors import ServiceError, invalid_field


class LocalDrafterFactory(Protocol):
    """Makes drafters that run in the verifier's own process, from `local:` addresses."""

    def read(self, field: str, address: str) -> str:
        """Returns the canonical form of the address in a request's field. Raises ServiceError."""

    def make(self, name: str, address: str, events: DrafterEvents) -> PooledDrafter:
        """Makes the drafter for a canonical address."""


class DrafterFactory:
    """Makes drafters of both kinds: services reached over a stream, and local ones in the verifier."""

    def __init__(
        self,
        sink: ProposalSink,
        events: DrafterEvents,
        identity: PeerInfo,
        connect: Callable[[str], Connect],
        local: LocalDrafterFactory | None,
        clocks: DrafterClocks,
        intake: FeatureIntake | None = None,
    ) -> None:
        """sink, events: shared by all drafters. identity: the verifier's, for handshakes. connect: opens calls to an
        address. local: makes local drafters; None refuses their addresses. intake: makes the features that drafters
        read; None if the verifier has none."""
        self._sink = sink
        self._events = events
        self._identity = identity
        self._connect = connect
        self._local = local
        self._clocks = clocks
        self._intake = intake
        self._standings = DrafterStandings(clocks)

    def read(self, field: str, address: str) -> str:
        """Returns the canonical form of the address in a request's field. Raises ServiceError, also if a service there
        may not be called."""
        if self._local is not None and is_local(address):
            return self._local.read(field, address)
        address = read_service_address(field, address)
        try:
            self._connect(address)
        except ServiceError as error:  # it names the field of AttachDrafter
            raise invalid_field(field, error.field_violations[0].description) from error
        return address

    def make(self, name: str, address: str) -> PooledDrafter:
        """Makes the drafter for a canonical address. Raises ServiceError if a service there may not be called."""
        if self._local is not None and is_local(address):
            return self._local.make(name, address, self._events)
        return ServiceDrafter(
            name,
            address,
            self._connect(address),
            self._identity,
            self._sink,
            self._events,
            self._standings.of(address),
            self._clocks,
            self._intake,
        )
