"""The drafters of a verifier, managed while requests run."""

# ruff: noqa: ASYNC109 (the timeout is the call's deadline, which the service sees)

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from draftwire.errors import DraftwireError, from_status
from draftwire.methods import ATTACH_DRAFTER, DETACH_DRAFTER, LIST_DRAFTERS, SWAP_DRAFTER, WATCH_DRAFTERS
from draftwire.model import ModelInfo, read_model_info
from draftwire.v1 import drafter_pool_service_pb2 as pb

if TYPE_CHECKING:
    from draftwire.async_transport import AsyncStream, AsyncTransport
    from draftwire.transport import Stream, Transport

DrafterState = Literal["connecting", "ready", "draining", "unreachable", "unknown"]
"""Where a drafter stands: ``"connecting"`` (handshake under way), ``"ready"`` (it drafts), ``"draining"`` (no new
sequences; released when its last one has moved), ``"unreachable"`` (connection lost; the verifier keeps trying)."""

_STATES: dict[int, DrafterState] = {
    pb.DRAFTER_STATE_CONNECTING: "connecting",
    pb.DRAFTER_STATE_READY: "ready",
    pb.DRAFTER_STATE_DRAINING: "draining",
    pb.DRAFTER_STATE_UNREACHABLE: "unreachable",
}


@dataclass(frozen=True, slots=True)
class Drafter:
    """One drafter of a verifier's pool."""

    name: str
    """Its name in the pool."""
    address: str
    """Its address."""
    state: DrafterState
    """Where it stands."""
    model: ModelInfo | None
    """Its model; None before the first handshake."""
    sequences: int
    """Sequences that use it now."""
    draft_tokens: int
    """Draft tokens verified since it was attached."""
    accepted_tokens: int
    """Draft tokens accepted since it was attached."""
    stale_nodes: int
    """Proposed nodes that came too late to be of use."""
    step_seconds: float | None
    """Smoothed time of one of its drafting steps, in seconds; None before the first."""
    response_seconds: float | None
    """Smoothed time from a verdict to the first proposal that builds on it, in seconds; None before the first."""
    attached_at: datetime | None
    """When it was attached (UTC)."""
    last_error: DraftwireError | None
    """The last fault, when there was one."""
    announced: bool
    """True when the drafter announced itself."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens since it was attached, in [0, 1]; 0.0 when nothing was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0


DrafterList = list[Drafter]
"""The drafters of a pool, oldest first."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A swap that is done."""

    drafter: Drafter
    """The drafter that took over."""
    moved_sequences: int
    """Sequences that moved while running."""


def read_drafter(message: pb.Drafter) -> Drafter:
    """Return a ``Drafter`` from its message."""
    return Drafter(
        name=message.name,
        address=message.address,
        state=_STATES.get(message.state, "unknown"),
        model=read_model_info(message.model) if message.HasField("model") else None,
        sequences=message.sequences,
        draft_tokens=message.draft_tokens,
        accepted_tokens=message.accepted_tokens,
        stale_nodes=message.stale_nodes,
        step_seconds=message.step_time.ToTimedelta().total_seconds() if message.HasField("step_time") else None,
        response_seconds=(
            message.response_time.ToTimedelta().total_seconds() if message.HasField("response_time") else None
        ),
        attached_at=message.attached_at.ToDatetime(tzinfo=UTC) if message.HasField("attached_at") else None,
        last_error=from_status(message.last_error) if message.HasField("last_error") else None,
        announced=message.announced,
    )


def read_drafters(messages: Iterable[pb.Drafter]) -> list[Drafter]:
    """Return the drafters of a pool from their messages."""
    return [read_drafter(message) for message in messages]


class WatchReader:
    """Reads the states of a pool."""

    method = WATCH_DRAFTERS
    finished = False

    def next_request(self) -> pb.WatchDraftersRequest:
        """Return the request, which is always the same: each stream begins with the present state."""
        return pb.WatchDraftersRequest()

    def read(self, response: pb.WatchDraftersResponse) -> DrafterList:
        """Return the state a response tells."""
        return read_drafters(response.drafters)


class Drafters:
    """The drafters of the verifier in use: ``client.drafters``."""

    def __init__(self, transport: Transport) -> None:
        """Used by ``Client``."""
        self._transport = transport

    def list(self) -> list[Drafter]:
        """Return all drafters, oldest first.

        Raises:
            DraftwireError: the call failed.
        """
        return read_drafters(self._transport.call(LIST_DRAFTERS, pb.ListDraftersRequest()).drafters)

    def attach(self, address: str, name: str | None = None, *, timeout: float | None = None) -> Drafter:
        """Connect a drafter and return it once it is ready.

        Attaching the same name and address again returns the drafter as it is.

        Args:
            address: host:port of a drafter service, as the verifier reaches it.
            name: its name in the pool; by default its address.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterUnreachableError: the verifier could not reach it.
            DrafterExistsError: the name is in use for another address.
            TokenizerMismatchError: its tokenizer is not the target's.
            UnsupportedDrafterError: the address has a form the verifier does not serve.
            DraftwireError: the call failed otherwise.
        """
        request = pb.AttachDrafterRequest(address=address, name=name or "")
        return read_drafter(self._transport.call(ATTACH_DRAFTER, request, timeout).drafter)

    def detach(self, name: str, *, timeout: float | None = None) -> Drafter:
        """Remove a drafter and return it as it was at the end, once no sequence uses it.

        Args:
            name: its name in the pool.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of this name is attached.
            DraftwireError: the call failed otherwise.
        """
        return read_drafter(self._transport.call(DETACH_DRAFTER, pb.DetachDrafterRequest(name=name), timeout).drafter)

    def swap(self, old: str, new: str, *, timeout: float | None = None) -> Swap:
        """Move every sequence from one drafter to another and return once the old one is released.

        Args:
            old: name of the drafter to release.
            new: name of an attached drafter, or the address of one to attach, that takes over.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of the old name is attached.
            DrafterUnreachableError: the verifier could not reach the new one; the old one stays.
            TokenizerMismatchError: the new one's tokenizer is not the target's; the old one stays.
            DraftwireError: the call failed otherwise.
        """
        request = pb.SwapDrafterRequest(old_name=old, new_name=new)
        response = self._transport.call(SWAP_DRAFTER, request, timeout)
        return Swap(read_drafter(response.drafter), response.moved_sequences)

    def watch(self) -> Stream[DrafterList]:
        """Iterate over the states of the pool: the present one at once, and one after every change.

        The stream has no end; close it, or leave its ``with`` block. It reconnects when the connection breaks.

        Raises:
            DraftwireError: while iterating, when the call failed.
        """
        return self._transport.stream(WatchReader(), None)


class AsyncDrafters:
    """The drafters of the verifier in use: ``client.drafters`` of an ``AsyncClient``."""

    def __init__(self, transport: AsyncTransport) -> None:
        """Used by ``AsyncClient``."""
        self._transport = transport

    async def list(self) -> list[Drafter]:
        """Return all drafters, oldest first.

        Raises:
            DraftwireError: the call failed.
        """
        return read_drafters((await self._transport.call(LIST_DRAFTERS, pb.ListDraftersRequest())).drafters)

    async def attach(self, address: str, name: str | None = None, *, timeout: float | None = None) -> Drafter:
        """Connect a drafter and return it once it is ready.

        Attaching the same name and address again returns the drafter as it is.

        Args:
            address: host:port of a drafter service, as the verifier reaches it.
            name: its name in the pool; by default its address.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterUnreachableError: the verifier could not reach it.
            DrafterExistsError: the name is in use for another address.
            TokenizerMismatchError: its tokenizer is not the target's.
            UnsupportedDrafterError: the address has a form the verifier does not serve.
            DraftwireError: the call failed otherwise.
        """
        request = pb.AttachDrafterRequest(address=address, name=name or "")
        return read_drafter((await self._transport.call(ATTACH_DRAFTER, request, timeout)).drafter)

    async def detach(self, name: str, *, timeout: float | None = None) -> Drafter:
        """Remove a drafter and return it as it was at the end, once no sequence uses it.

        Args:
            name: its name in the pool.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of this name is attached.
            DraftwireError: the call failed otherwise.
        """
        request = pb.DetachDrafterRequest(name=name)
        return read_drafter((await self._transport.call(DETACH_DRAFTER, request, timeout)).drafter)

    async def swap(self, old: str, new: str, *, timeout: float | None = None) -> Swap:
        """Move every sequence from one drafter to another and return once the old one is released.

        Args:
            old: name of the drafter to release.
            new: name of an attached drafter, or the address of one to attach, that takes over.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of the old name is attached.
            DrafterUnreachableError: the verifier could not reach the new one; the old one stays.
            TokenizerMismatchError: the new one's tokenizer is not the target's; the old one stays.
            DraftwireError: the call failed otherwise.
        """
        request = pb.SwapDrafterRequest(old_name=old, new_name=new)
        response = await self._transport.call(SWAP_DRAFTER, request, timeout)
        return Swap(read_drafter(response.drafter), response.moved_sequences)

    def watch(self) -> AsyncStream[DrafterList]:
        """Iterate over the states of the pool: the present one at once, and one after every change.

        To be used with ``async for``. The stream has no end; close it, or leave its ``async with`` block. It
        reconnects when the connection breaks.

        Raises:
            DraftwireError: while iterating, when the call failed.
        """
        return self._transport.stream(WatchReader(), None)
