"""The asyncio client that drafts by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from draftwire._async.client import AsyncClient
from draftwire._auth.bearer_token import TokenSource
from draftwire._auth.tls import Tls
from draftwire._calls.async_transport import AsyncTransport
from draftwire._calls.failover import RetryPolicy
from draftwire._calls.spreading import SpreadPolicy
from draftwire._types.verifier import Verifier, Verifiers
from edge_drafting.async_transport import AsyncEdgeTransport
from edge_drafting.local_drafter import LocalDrafter


class AsyncEdgeClient(AsyncClient):
    """A client whose requests are drafted for in this process, all in one batch. To be used on one event loop.

    It has the methods, options, results and errors of ``AsyncClient``, and gives the same tokens. In
    ``speculation.drafters`` of a result, and as the source of a token, this drafter is called ``"caller"``. Drafters of
    the verifier draft beside it. A request resumed at another verifier is drafted for there as well. If the draft model
    fails, that is logged (logger ``draftwire.edge``), and requests go on without it.

    Loading the draft model blocks, so a running loop is spared it by

        client = await asyncio.to_thread(AsyncEdgeClient, "localhost:50051", model="models/draft")
    """

    def __init__(
        self,
        address: Verifiers = "localhost:50051",
        *,
        model: str | LocalDrafter,
        dtype: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        kv_slots: int = 32768,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        spread: SpreadPolicy | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        tls: Tls | None = None,
        token: TokenSource | None = None,
        insecure: bool = False,
    ) -> None:
        """Loads the draft model, which takes seconds. The connection is made with the first call.

        Args:
            address: host:port of a verifier, or several that serve the same target model; see ``Client``.
            model: directory or hub id of the draft model, whose tokenizer has to be the target's; or a
                ``LocalDrafter``, which several clients can share and which closing this one leaves open.
            dtype: see ``LocalDrafter``, as for device, threads and kv_slots.
            device: see there.
            threads: see there.
            kv_slots: see there.
            timeout: seconds a call may take in all, unless the call says otherwise; None waits without limit.
            retry: what to do about verifiers that cannot be reached; default ``RetryPolicy()``.
            spread: how requests are spread over several verifiers; default ``SpreadPolicy()``.
            credentials: gRPC channel credentials of your own making, in place of ``tls``.
            tls: encrypt and say whom to trust, see ``Tls``; None connects in the clear, to this machine only.
            token: the token to show to the service, or a function that returns the present one (``TokenFile``).
            insecure: True allows connections in the clear to other machines, token included.

        Raises:
            ModelLoadError: the model cannot be loaded or served.
            ValueError: no address, or one that is none; files of ``tls`` that cannot be used; an address beyond this
                machine without TLS.
        """
        self._owned = not isinstance(model, LocalDrafter)
        self._drafter = (
            model
            if isinstance(model, LocalDrafter)
            else LocalDrafter(model, dtype=dtype, device=device, threads=threads, kv_slots=kv_slots)
        )
        super().__init__(
            address,
            timeout=timeout,
            retry=retry,
            spread=spread,
            credentials=credentials,
            tls=tls,
            token=token,
            insecure=insecure,
        )

    async def close(self) -> None:
        """Cancels the calls that run, closes the connections, and ends the drafting."""
        await super().close()
        if self._owned:
            await asyncio.to_thread(self._drafter.close)

    def _make_transport(self, verifiers: tuple[Verifier, ...], **options: Any) -> AsyncTransport:
        return AsyncEdgeTransport(self._drafter, verifiers, **options)
