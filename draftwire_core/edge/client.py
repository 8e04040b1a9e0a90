# Generated from draftwire_core/edge/async_client.py by scripts/generate_sync.py. Do not edit.

"""The synchronous client that drafts in its own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from draftwire._auth.bearer_token import TokenSource
from draftwire._auth.tls import Tls
from draftwire._calls.failover import RetryPolicy
from draftwire._calls.spreading import SpreadPolicy
from draftwire._calls.transport import Transport
from draftwire._sync.client import Client
from draftwire._types.verifier import Verifier, Verifiers
from draftwire_core.edge.local_drafter import LocalDrafter
from draftwire_core.edge.transport import EdgeTransport


class EdgeClient(Client):
    """A client that drafts for its requests in this process, in one batch. Safe to use from several threads.

    It has the methods, options, results and errors of ``Client``, and gives the same tokens. Results name this
    drafter ``"caller"``, in ``speculation.drafters`` and as the source of a token. The verifier's own drafters draft in
    addition to it. Drafting continues when a request is resumed at another verifier. If the draft model fails, the
    error is logged (logger ``draftwire.edge``), and requests continue without it.
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
            model: directory or hub id of the draft model, whose tokenizer must be the target's; or a ``LocalDrafter``,
                which several clients can share and which stays open when this client is closed.
            dtype: data type of the weights; see ``LocalDrafter``.
            device: device of the model; see ``LocalDrafter``.
            threads: CPU threads of a forward pass; see ``LocalDrafter``.
            kv_slots: size of the KV cache in tokens; see ``LocalDrafter``.
            timeout: total seconds a call may take, unless the call sets its own; None waits without limit.
            retry: what to do about verifiers that cannot be reached; default ``RetryPolicy()``.
            spread: how requests are spread over several verifiers; default ``SpreadPolicy()``.
            credentials: your own gRPC channel credentials, instead of ``tls``.
            tls: encryption and the certificates to trust; None connects unencrypted, to this machine only.
            token: the token to present to the service, or a function that returns the current one (``TokenFile``).
            insecure: True allows unencrypted connections to other machines, token included.

        Raises:
            ModelLoadError: the model cannot be loaded or served.
            ValueError: no address or an invalid one, unusable files in ``tls``, or an address on another machine
                without TLS.
        """
        self._owned = not isinstance(model, LocalDrafter)
        self._load: Callable[[], LocalDrafter] = lambda: (  # called once the other arguments are known to be valid
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

    def close(self) -> None:
        """Cancels running calls, closes the connections, and stops drafting."""
        super().close()
        if self._owned:
            self._drafter.close()

    def _make_transport(self, verifiers: tuple[Verifier, ...], **options: Any) -> Transport:
        self._drafter = self._load()
        return EdgeTransport(self._drafter, verifiers, **options)
