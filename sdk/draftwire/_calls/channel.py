"""gRPC channels to verifiers: their options, and one lazily created channel per address."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import grpc
import grpc.aio

from draftwire._auth.security import Metadata, Security
from draftwire._types.address import is_loopback

ChannelT = TypeVar("ChannelT")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message that the client accepts, in bytes. The service limits what it may send."""
_MOST_CHANNELS = 64
"""Most channels kept by a client; with changing addresses behind a DNS name, the least recently used are dropped."""

_Options = tuple[tuple[str, int | str], ...]

CHANNEL_OPTIONS: _Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # Detects a silent connection (a frozen process, a pulled cable, a lost NAT entry) within 10 s while a call runs.
    # The services accept a ping every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    # gRPC sends no keepalive ping while one of its bandwidth probes is outstanding, which by default may take a minute.
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC decompresses a message before it checks the size. Nothing here compresses, so only 1, "identity", is allowed.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    # Finds a returning service soon; a connection attempt gives up after 5 s instead of 20.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Calls fail immediately while a channel waits to reconnect, so the wait must be short compared to the 0.7 s of a
    # RetryPolicy: a verifier may return just when the other one goes.
    ("grpc.max_reconnect_backoff_ms", 300),
    # Not shared with other clients of the process, so that a new client connects immediately.
    ("grpc.use_local_subchannel_pool", 1),
)


def _options(base: _Options, security: Security, authority: str | None) -> _Options:
    """Returns the options of a channel. With TLS the certificate must be for the DNS name, not for its address."""
    name = security.server_name
    if name is not None:
        return (*base, ("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))
    return base if authority is None else (*base, ("grpc.default_authority", authority))


class _Channels(ABC, Generic[ChannelT]):
    """Channels by address."""

    def __init__(self, security: Security, options: _Options = CHANNEL_OPTIONS) -> None:
        """Starts without a channel, so that no event loop is needed yet."""
        self._security = security
        self._options = options
        self._channels: dict[str, tuple[ChannelT, object]] = {}
        """Channels with what they were made for, credentials and loss, the most recently used one last."""
        self._lost: dict[str, float] = {}
        self._closed = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._closed

    @property
    def encrypted(self) -> bool:
        """Whether calls use TLS."""
        return self._security.encrypted

    def get(self, address: str, authority: str | None = None) -> ChannelT:
        """Returns the channel to an address; ``authority`` is the DNS name that it was found under.

        Raises:
            RuntimeError: the client is closed.
            ValueError: unencrypted calls to another machine are not allowed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            made_for = self._security.credentials(), self._lost.get(address)
            channel, before = self._channels.pop(address, (None, None))
            if channel is None or before != made_for:  # running calls continue on the dropped channel
                channel = self.open(address, authority)
            self._channels[address] = channel, made_for
            while len(self._channels) > _MOST_CHANNELS:
                del self._channels[next(iter(self._channels))]
            return channel

    def lost(self, name: str) -> None:
        """Has a name whose service was lost looked up again soon: gRPC's own pauses grow to two minutes."""
        self._lost[name] = time.monotonic() // 10

    def check(self, address: str) -> None:
        """Checks that an address may be called. Raises ValueError if calls would leave the machine unencrypted."""
        self._security.check(address)

    def open(self, address: str, authority: str | None = None) -> ChannelT:
        """Returns a new channel, which the caller closes, through no proxy on this machine. Raises as ``check``."""
        self._security.check(address)
        base = (*self._options, ("grpc.enable_http_proxy", 0)) if is_loopback(address) else self._options
        return self._made(address, self._security.credentials(), _options(base, self._security, authority))

    def metadata(self) -> Metadata:
        """Returns the metadata of every call."""
        return self._security.metadata()

    @abstractmethod
    def _made(self, address: str, credentials: grpc.ChannelCredentials | None, options: _Options) -> ChannelT:
        """Returns a new channel; unencrypted without credentials."""

    def _all(self) -> list[ChannelT]:
        """Returns the channels to be closed, and gives out none from now on."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
        return [channel for channel, _ in channels.values()]


class Channels(_Channels[grpc.Channel]):
    """Sync channels by address. Safe to use from several threads."""

    def _made(self, address: str, credentials: grpc.ChannelCredentials | None, options: _Options) -> grpc.Channel:
        if credentials is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, credentials, options=options)

    def close(self) -> None:
        """Closes all channels; running calls are cancelled."""
        for channel in self._all():
            channel.close()


class AsyncChannels(_Channels[grpc.aio.Channel]):
    """Asyncio channels by address, all used on one event loop."""

    def _made(self, address: str, credentials: grpc.ChannelCredentials | None, options: _Options) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    async def close(self) -> None:
        """Closes all channels; running calls are cancelled."""
        for channel in self._all():
            await channel.close()
