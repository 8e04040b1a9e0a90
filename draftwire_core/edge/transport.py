"""Calls of the synchronous edge client. Requests go through Verify, but look like Generate to the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any, Self

from google.protobuf.message import Message

from draftwire._calls.call_span import Metadata
from draftwire._calls.failover import remaining
from draftwire._calls.transport import Transport
from draftwire._messages.methods import VERIFY, Method
from draftwire._types.verifier import Verifier
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.edge.edge_request import EdgeRequest, EncodedStart, encoded
from draftwire_core.edge.local_drafter import LocalDrafter


class EdgeTransport(Transport):
    """Makes calls to the verifiers of a client, and drafts for generation calls."""

    def __init__(self, drafter: LocalDrafter, verifiers: tuple[Verifier, ...], **options: Any) -> None:
        """Creates a transport without a connection. ``options`` are those of ``Transport``."""
        super().__init__(verifiers, **options)
        self._drafter = drafter

    def encoded(self, request: Message | partial[Any]) -> Any:
        """Returns a request as ``open`` takes it: as the start of a Verify stream if it wants drafts."""
        if isinstance(request, pb.GenerateRequest) and wants_drafts(request, self._drafter):
            return EncodedStart.of(request, self._drafter)
        return super().encoded(request)

    def open(
        self,
        method: Method[Any, Any],
        request: Any,
        address: str,
        deadline: float | None,
        metadata: Metadata = (),
    ) -> Any:
        """Starts one attempt of a streaming call; returns grpc's call, or an object with the same methods."""
        if not isinstance(request, EncodedStart):
            return super().open(method, request, address, deadline, metadata)
        rpc = self._channels.get(address, self._endpoints.authority(address)).stream_stream(
            VERIFY.path,
            request_serializer=encoded,
            response_deserializer=VERIFY.response.FromString,
        )
        metadata = (*self._channels.metadata(), *metadata)
        return EdgeCall(
            lambda requests: rpc(requests, timeout=remaining(deadline), metadata=metadata), request, self._drafter
        )


def wants_drafts(request: pb.GenerateRequest, drafter: LocalDrafter) -> bool:
    """Returns whether a request enables speculation and the drafter is still alive."""
    options = request.speculation
    wanted = options.enabled or not options.HasField("enabled")
    return wanted and (options.max_draft_tokens > 0 or not options.HasField("max_draft_tokens")) and drafter.alive


class EdgeCall:
    """One Verify call behind the interface that ``Stream`` needs of a Generate call: a cancellable iterator of events.

    A thread reads the stream, so that drafting does not stall if the caller reads its chunks slowly. The request's own
    tokens bound what is buffered for the caller.
    """

    def __init__(
        self,
        start: Callable[[Iterator[pb.VerifyRequest | EncodedStart]], Any],
        first: EncodedStart,
        drafter: LocalDrafter,
    ) -> None:
        """Starts the call."""
        self._outbox: SimpleQueue[pb.VerifyRequest | EncodedStart | None] = SimpleQueue()
        self._inbox: SimpleQueue[pb.GenerateResponse | Exception | None] = SimpleQueue()
        self._drafted = EdgeRequest(drafter, self._outbox.put)
        self._outbox.put(first)
        self._call = start(iter(self._outbox.get, None))
        threading.Thread(target=self._read, name="draftwire-edge-call", daemon=True).start()

    def __iter__(self) -> Self:
        """Returns the call itself."""
        return self

    def __next__(self) -> pb.GenerateResponse:
        """Returns the next event. Raises grpc.RpcError."""
        item = self._inbox.get()
        if isinstance(item, pb.GenerateResponse):
            return item
        self._inbox.put(item)  # later reads end the same way
        if item is None:
            raise StopIteration
        raise item

    def initial_metadata(self) -> Any:
        """Returns the call's initial metadata. Waits for it, or for the end of the call."""
        return self._call.initial_metadata()

    def cancel(self) -> None:
        """Cancels the call, if it still runs."""
        self._call.cancel()

    def _read(self) -> None:
        """Reads the stream to its end, in a thread of its own."""
        end: Exception | None = None
        try:
            for message in self._call:
                event = self._drafted.take(message)
                if event is not None:
                    self._inbox.put(event)
        except Exception as error:  # noqa: BLE001 - raised again where the events are taken
            end = error
            self._call.cancel()
        finally:
            self._drafted.close()
            self._outbox.put(None)  # ends grpc's sending thread
            self._inbox.put(end)
