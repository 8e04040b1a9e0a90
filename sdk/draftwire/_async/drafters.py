"""The drafters of a verifier, managed while requests run, for asyncio."""

from __future__ import annotations

from collections.abc import Mapping

from draftwire._calls.async_transport import AsyncStream, AsyncTransport
from draftwire._messages.methods import (
    ATTACH_DRAFTER,
    DETACH_DRAFTER,
    FINISH_ROLLOUT,
    GET_DRAFTER_INFO,
    LIST_DRAFTERS,
    LIST_ROLLOUTS,
    LOAD_MODEL,
    START_ROLLOUT,
    SWAP_DRAFTER,
)
from draftwire._messages.requests import new_request_id
from draftwire._messages.watching import WatchReader
from draftwire._types.drafter import Drafter, DrafterList, Swap, read_drafter, read_drafters
from draftwire._types.drafter_service import DrafterServiceInfo, ModelLoad, read_drafter_service_info, read_model_load
from draftwire._types.rollout import Rollout, RolloutList, read_rollout
from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1 import drafter_service_pb2 as drafter_pb


class AsyncDrafters:
    """The drafters of the verifier in use: ``AsyncClient.drafters``."""

    def __init__(self, transport: AsyncTransport) -> None:
        """Used by ``AsyncClient``."""
        self._transport = transport

    async def list(self) -> list[Drafter]:
        """Return all drafters, oldest first.

        Raises:
            DraftwireError: the call failed.
        """
        response = await self._transport.call(LIST_DRAFTERS, pb.ListDraftersRequest())
        return read_drafters(response.drafters)

    async def attach(
        self,
        address: str,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        trusted: bool | None = None,
        timeout: float | None = None,
    ) -> Drafter:
        """Connect a drafter and return it once it is ready.

        Attaching the same name and address again returns the drafter as it is, with the labels given, if some are.

        Args:
            address: host:port of a drafter service, as the verifier reaches it; or one in the verifier, for example
                ``"local:ngram"``.
            name: its name in the pool; by default its address.
            labels: what it is good for, for example ``{"domain": "code"}``; requests can ask for it.
            trusted: whether it is trusted to say truly what its tokens were drawn from, and may draft for requests with
                the rule of rejection; None leaves it as it is, at first untrusted.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterUnreachableError: the verifier could not reach it.
            DrafterExistsError: the name is in use for another address.
            TokenizerMismatchError: its tokenizer is not the target's.
            UnsupportedDrafterError: the verifier has no drafter of this name.
            DraftwireError: the call failed otherwise.
        """
        request = pb.AttachDrafterRequest(address=address, name=name or "", labels=labels)
        if trusted is not None:
            request.trusted = trusted
        response = await self._transport.call(ATTACH_DRAFTER, request, timeout)
        return read_drafter(response.drafter)

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
        response = await self._transport.call(DETACH_DRAFTER, request, timeout)
        return read_drafter(response.drafter)

    async def swap(self, old: str, new: str, request_id: str | None = None, *, timeout: float | None = None) -> Swap:
        """Move every sequence from one drafter to another and return once the old one is released.

        A call whose answer is lost is made again, at the same verifier; it then joins the swap under way.

        Args:
            old: name of the drafter to release.
            new: name of an attached drafter, or the address of one to attach, that takes over.
            request_id: a name for this swap: another call with it, also later, is the same swap; default: a new one.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of the old name is attached.
            DrafterUnreachableError: the verifier could not reach the new one; the old one stays.
            TokenizerMismatchError: the new one's tokenizer is not the target's; the old one stays.
            BusyError: another swap or roll-out of one of the two is under way.
            DraftwireError: the call failed otherwise.
        """
        request = pb.SwapDrafterRequest(old_name=old, new_name=new, request_id=request_id or new_request_id())
        response = await self._transport.call(SWAP_DRAFTER, request, timeout)
        return Swap(read_drafter(response.drafter), response.moved_sequences)

    async def rollout(self, old: str, new: str, share: float, *, timeout: float | None = None) -> Rollout:
        """Give a drafter a share of another one's sequences, to see how it does before it takes over.

        It is withdrawn by itself when its acceptance is significantly worse. Calling this again while the roll-out runs
        changes the share.

        Args:
            old: name of the drafter that has the sequences.
            new: name of an attached drafter, or the address of one to attach, that gets a share of them.
            share: share of sequences for the new one, in (0, 1].
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of the old name is attached.
            DrafterUnreachableError: the verifier could not reach the new one.
            TokenizerMismatchError: the new one's tokenizer is not the target's.
            BusyError: another swap or roll-out of one of the two is under way.
            DraftwireError: the call failed otherwise.
        """
        request = pb.StartRolloutRequest(old_name=old, new_name=new, share=share)
        response = await self._transport.call(START_ROLLOUT, request, timeout)
        return read_rollout(response.rollout)

    async def promote(self, new: str, *, timeout: float | None = None) -> Rollout:
        """End a roll-out: the new drafter takes over all sequences, and the old one is released.

        Args:
            new: name of the drafter that has the share.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            RolloutNotFoundError: no roll-out of this drafter is under way.
            DraftwireError: the call failed otherwise.
        """
        request = pb.FinishRolloutRequest(new_name=new, promote=True)
        response = await self._transport.call(FINISH_ROLLOUT, request, timeout)
        return read_rollout(response.rollout)

    async def withdraw(self, new: str, *, timeout: float | None = None) -> Rollout:
        """End a roll-out: the new drafter gives its sequences back and is released.

        Args:
            new: name of the drafter that has the share.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            RolloutNotFoundError: no roll-out of this drafter is under way.
            DraftwireError: the call failed otherwise.
        """
        request = pb.FinishRolloutRequest(new_name=new, promote=False)
        response = await self._transport.call(FINISH_ROLLOUT, request, timeout)
        return read_rollout(response.rollout)

    async def rollouts(self) -> RolloutList:
        """Return the roll-outs under way, then those that ended lately, newest first.

        Raises:
            DraftwireError: the call failed.
        """
        found = await self._transport.call(LIST_ROLLOUTS, pb.ListRolloutsRequest())
        return [read_rollout(rollout) for rollout in found.rollouts]

    async def load_model(
        self, drafter_address: str, model: str, request_id: str | None = None, *, timeout: float | None = None
    ) -> ModelLoad:
        """Have a drafter service load another model and return at once; ``load_state`` tells how far it is.

        This talks to the drafter service itself. Once the model is there, verifiers move their sequences to it while
        they run; until then the drafter goes on with the old one. A call whose answer is lost is made again.

        Args:
            drafter_address: host:port of the drafter service, as this machine reaches it.
            model: directory on the drafter's machine, or hub id.
            request_id: a name for this change: another call with it, also later, is the same change; default: a new
                one.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            BusyError: another model is being loaded.
            UnavailableError: the drafter service could not be reached.
            DraftwireError: the call failed otherwise.
        """
        request = drafter_pb.LoadModelRequest(model=model, request_id=request_id or new_request_id())
        response = await self._transport.call(LOAD_MODEL, request, timeout, address=drafter_address)
        return read_model_load(response.load)

    async def load_state(self, drafter_address: str, *, timeout: float | None = None) -> DrafterServiceInfo:
        """Return what a drafter service serves, how far the last change of its model is, and what it holds.

        Args:
            drafter_address: host:port of the drafter service, as this machine reaches it.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            UnavailableError: the drafter service could not be reached.
            DraftwireError: the call failed otherwise.
        """
        request = drafter_pb.DrafterServiceGetModelInfoRequest()
        return read_drafter_service_info(
            await self._transport.call(GET_DRAFTER_INFO, request, timeout, address=drafter_address)
        )

    def watch(self) -> AsyncStream[DrafterList]:
        """Iterate over the states of the pool: the present one at once, and one after every change.

        The stream has no end; close it, or leave its ``async with`` block. It reconnects when the connection breaks.

        Raises:
            DraftwireError: while iterating, when the call failed.
        """
        return self._transport.stream(WatchReader(), None)
