"""The drafters of a verifier, managed while requests run, for asyncio."""

from __future__ import annotations

from collections.abc import Mapping

from draftwire._calls.async_transport import AsyncStream, AsyncTransport
from draftwire._messages.learning import learning_message
from draftwire._messages.methods import (
    ATTACH_DRAFTER,
    DETACH_DRAFTER,
    FINISH_ROLLOUT,
    GET_DRAFTER_INFO,
    LIST_DRAFTERS,
    LIST_ROLLOUTS,
    LOAD_MODEL,
    REPORT_LEARNING,
    START_ROLLOUT,
    SWAP_DRAFTER,
    WATCH_DRAFTERS,
)
from draftwire._messages.reading import Subscription
from draftwire._messages.requests import new_request_id
from draftwire._messages.validation import duration
from draftwire._types.drafter import Drafter, DrafterList, Swap
from draftwire._types.drafter_service import DrafterServiceInfo, ModelLoad, read_drafter_service_info
from draftwire._types.from_message import read, read_all
from draftwire._types.learning import Learning
from draftwire._types.rollout import Rollout, RolloutList
from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1 import drafter_service_pb2 as drafter_pb


class AsyncDrafters:
    """The drafters of the verifier in use: ``AsyncClient.drafters``."""

    def __init__(self, transport: AsyncTransport) -> None:
        """Manages drafters over a transport. Called by ``AsyncClient``."""
        self._transport = transport

    async def list(self) -> DrafterList:
        """Returns all drafters, oldest first.

        Raises:
            DraftwireError: the call failed.
        """
        response = await self._transport.call(LIST_DRAFTERS, pb.ListDraftersRequest())
        return read_all(Drafter, response.drafters)

    async def attach(
        self,
        address: str,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        trusted: bool | None = None,
        lease: float | None = None,
        timeout: float | None = None,
    ) -> Drafter:
        """Attaches a drafter and returns it once it is ready.

        Attaching the same name and address again returns the existing drafter; labels, if given, replace its own.

        Args:
            address: host:port of a drafter service, as the verifier reaches it; or a drafter that runs in the verifier,
                for example ``"local:ngram"``.
            name: the drafter's name in the pool; default: its address.
            labels: what the drafter is good for, for example ``{"domain": "code"}``; requests can select by label.
            trusted: whether the draft distributions it reports are trusted, so that it may draft for requests with the
                rejection rule. None leaves this as it is; at first only drafters that the verifier's settings name are
                trusted.
            lease: seconds after which the verifier detaches the drafter unless ``renew`` is called, for a program that
                may be killed; default: it stays attached.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterUnreachableError: the verifier could not reach the drafter.
            DrafterExistsError: the name is in use for another address.
            TokenizerMismatchError: the drafter's tokenizer is not the target's.
            UnsupportedDrafterError: the verifier does not serve drafter addresses of this form.
            DraftwireError: the call failed otherwise.
        """
        request = pb.AttachDrafterRequest(
            address=address, name=name or "", labels=labels, lease=duration("lease", lease)
        )
        if trusted is not None:
            request.trusted = trusted
        response = await self._transport.call(ATTACH_DRAFTER, request, timeout)
        return read(Drafter, response.drafter)

    async def renew(self, name: str, lease: float, *, timeout: float | None = None) -> None:
        """Renews the lease of a drafter that was attached with one; it attaches nothing.

        Args:
            name: the drafter's name in the pool.
            lease: seconds from now after which the verifier detaches the drafter unless this is called again.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of this name is attached or has a lease.
            DraftwireError: the call failed otherwise.
        """
        request = pb.AttachDrafterRequest(address=name, name=name, lease=duration("lease", lease), renewal=True)
        await self._transport.call(ATTACH_DRAFTER, request, timeout)

    async def detach(self, name: str, *, timeout: float | None = None) -> Drafter:
        """Removes a drafter and returns its final state, once no sequence uses it.

        Args:
            name: the drafter's name in the pool.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of this name is attached.
            DraftwireError: the call failed otherwise.
        """
        request = pb.DetachDrafterRequest(name=name)
        response = await self._transport.call(DETACH_DRAFTER, request, timeout)
        return read(Drafter, response.drafter)

    async def swap(self, old: str, new: str, request_id: str | None = None, *, timeout: float | None = None) -> Swap:
        """Moves every sequence from one drafter to another and returns once the old one is released.

        A call whose response is lost is repeated at the same verifier and joins the running swap.

        Args:
            old: name of the drafter to release.
            new: the drafter that takes over: the name of an attached one, or the address of one to attach.
            request_id: an id for this swap; a later call with the same id refers to the same swap. Default: a new id.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter named ``old`` is attached.
            DrafterUnreachableError: the verifier could not reach the new drafter; the old one stays.
            TokenizerMismatchError: the new drafter's tokenizer is not the target's; the old one stays.
            BusyError: another swap or rollout of one of the two is running.
            DraftwireError: the call failed otherwise.
        """
        request = pb.SwapDrafterRequest(old_name=old, new_name=new, request_id=request_id or new_request_id())
        response = await self._transport.call(SWAP_DRAFTER, request, timeout)
        return Swap(read(Drafter, response.drafter), response.moved_sequences)

    async def rollout(self, old: str, new: str, share: float, *, timeout: float | None = None) -> Rollout:
        """Starts a rollout: a new drafter gets a share of another one's sequences before it takes over.

        The new drafter is withdrawn automatically if its acceptance is significantly worse. Calling this again during
        the rollout changes the share.

        Args:
            old: name of the drafter that has the sequences.
            new: the drafter that gets a share of them: the name of an attached one, or the address of one to attach.
            share: the new drafter's share of the sequences, in (0, 1].
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter named ``old`` is attached.
            DrafterUnreachableError: the verifier could not reach the new drafter.
            TokenizerMismatchError: the new drafter's tokenizer is not the target's.
            BusyError: another swap or rollout of one of the two is running.
            DraftwireError: the call failed otherwise.
        """
        request = pb.StartRolloutRequest(old_name=old, new_name=new, share=share)
        response = await self._transport.call(START_ROLLOUT, request, timeout)
        return read(Rollout, response.rollout)

    async def promote(self, new: str, *, timeout: float | None = None) -> Rollout:
        """Ends a rollout: the new drafter takes over all sequences, and the old one is released.

        Args:
            new: name of the new drafter.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            RolloutNotFoundError: no rollout of this drafter is running.
            DraftwireError: the call failed otherwise.
        """
        request = pb.FinishRolloutRequest(new_name=new, promote=True)
        response = await self._transport.call(FINISH_ROLLOUT, request, timeout)
        return read(Rollout, response.rollout)

    async def withdraw(self, new: str, *, timeout: float | None = None) -> Rollout:
        """Ends a rollout: the new drafter returns its sequences to the old one and is released.

        Args:
            new: name of the new drafter.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            RolloutNotFoundError: no rollout of this drafter is running.
            DraftwireError: the call failed otherwise.
        """
        request = pb.FinishRolloutRequest(new_name=new, promote=False)
        response = await self._transport.call(FINISH_ROLLOUT, request, timeout)
        return read(Rollout, response.rollout)

    async def rollouts(self) -> RolloutList:
        """Returns the running rollouts, then the recently ended ones, newest first.

        Raises:
            DraftwireError: the call failed.
        """
        found = await self._transport.call(LIST_ROLLOUTS, pb.ListRolloutsRequest())
        return read_all(Rollout, found.rollouts)

    async def report_learning(self, name: str, learning: Learning, *, timeout: float | None = None) -> None:
        """Reports the state of a learner, which the verifier shows with the drafter until that leaves.

        Args:
            name: name of the drafter whose draft model learns.
            learning: the learner's state; the verifier sets its time.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DrafterNotFoundError: no drafter of this name is attached.
            DraftwireError: the call failed otherwise.
        """
        request = pb.ReportLearningRequest(drafter_name=name, learning=learning_message(learning))
        await self._transport.call(REPORT_LEARNING, request, timeout)

    async def load_model(
        self,
        drafter_address: str,
        model: str,
        request_id: str | None = None,
        *,
        wait: bool = False,
        timeout: float | None = None,
    ) -> ModelLoad:
        """Starts loading another model in a drafter service and returns immediately; poll ``load_state`` for progress.

        The call goes to the drafter service itself, which drafts with the old model until the new one is loaded. Then
        verifiers move their running sequences to the new model. A call whose response is lost is repeated.

        Args:
            drafter_address: host:port of the drafter service, as this machine reaches it.
            model: directory on the drafter's machine, or hub id.
            request_id: an id for this change; a later call with the same id refers to the same change. Default: a new
                id.
            wait: return only when the model is served or has failed to load. The load then ends with the call: it is
                cancelled, and the old model stays, if the timeout passes or the call is interrupted.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            BusyError: the service is already loading another model.
            UnavailableError: the drafter service could not be reached.
            DraftwireError: the call failed otherwise.
        """
        request = drafter_pb.LoadModelRequest(model=model, request_id=request_id or new_request_id(), wait=wait)
        response = await self._transport.call(LOAD_MODEL, request, timeout, address=drafter_address)
        return read(ModelLoad, response.load)

    async def load_state(self, drafter_address: str, *, timeout: float | None = None) -> DrafterServiceInfo:
        """Returns a drafter service's model, the state of its last model change, and its load.

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
        """Iterates over the states of the pool: the current one immediately, then one after every change.

        The stream never ends; close it, or leave its ``async with`` block. It reconnects after a lost connection.

        Raises:
            DraftwireError: the call failed, raised while iterating.
        """
        return self._transport.stream(
            Subscription(WATCH_DRAFTERS, lambda response: read_all(Drafter, response.drafters)), float("inf")
        )
