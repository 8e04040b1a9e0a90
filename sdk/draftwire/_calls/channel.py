"""Channels to verifiers: options, and one lazily made channel for each address."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
import grpc.aio

from draftwire._auth.security import Metadata, Security

ChannelT = TypeVar("ChannelT")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message the client takes, in bytes. What it may send is limited by the service."""

_MOST_CHANNELS = 64
"""Channels kept by a client; when verifiers come and go behind a name, those used longest ago are let go."""

_Options = tuple[tuple[str, int | str], ...]

CHANNEL_OPTIONS: _Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # A connection that went silent (a frozen process, a pulled cable, a lost NAT entry) is noticed within 10 s while a
    # call runs. The services take a ping every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    # While a ping of gRPC's own is under way (it measures bandwidth with them) none is sent for keepalive, and by
    # default such a ping may take a minute.
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC inflates a compressed message before it looks at its size. Nobody here compresses, for which 1 stands.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    # A service that comes back is found again soon; connecting gives up after 5 s instead of 20.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Calls fail at once while a channel waits to connect again, so that wait has to be short beside the 0.7 s of a
    # RetryPolicy: a verifier may be back just when the other one goes.
    ("grpc.max_reconnect_backoff_ms", 300),
    # Not shared with other clients of the process: a new one tries at once.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class _Kept(Generic[ChannelT]):
    """A channel, and what it was made with."""

    channel: ChannelT
    credentials: grpc.ChannelCredentials | None


def _options(base: _Options, security: Security, authority: str | None) -> _Options:
    """The options of a channel; with TLS the certificate has to be for the name, not for its address."""
    name = security.server_name
    if name is not None:
        return (*base, ("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))
    return base if authority is None else (*base, ("grpc.default_authority", authority))


def _usable(kept: _Kept[ChannelT] | None, credentials: grpc.ChannelCredentials | None) -> ChannelT | None:
    """The channel that is kept, unless the files it was made with have changed.

    Calls that run on one that is let go stay on it.
    """
    return None if kept is None or kept.credentials is not credentials else kept.channel


def _keep(
    channels: dict[str, _Kept[ChannelT]], address: str, channel: ChannelT, credentials: grpc.ChannelCredentials | None
) -> ChannelT:
    """Keep a channel as the one used last, and let go of those used longest ago when there are too many."""
    channels[address] = _Kept(channel, credentials)
    while len(channels) > _MOST_CHANNELS:
        del channels[next(iter(channels))]
    return channel


class Channels:
    """Sync channels by address. Safe to use from several threads."""

    def __init__(self, security: Security) -> None:
        """Start without a channel."""
        self._security = security
        self._channels: dict[str, _Kept[grpc.Channel]] = {}
        self._closed = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """True when the client is closed."""
        return self._closed

    @property
    def encrypted(self) -> bool:
        """True when calls go by TLS."""
        return self._security.encrypted

    def get(self, address: str, authority: str | None = None) -> grpc.Channel:
        """Return the channel to an address, which was found under the name ``authority``.

        Raises:
            RuntimeError: the client is closed.
            ValueError: the calls would go to another machine in the clear, which nobody allowed.
        """
        self._security.check(address)
        credentials = self._security.credentials()
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            channel = _usable(self._channels.pop(address, None), credentials)
            if channel is None:
                options = _options(CHANNEL_OPTIONS, self._security, authority)
                channel = (
                    grpc.secure_channel(address, credentials, options=options)
                    if credentials is not None
                    else grpc.insecure_channel(address, options=options)
                )
            return _keep(self._channels, address, channel, credentials)

    def metadata(self) -> Metadata:
        """Return what goes with every call."""
        return self._security.metadata()

    def close(self) -> None:
        """Close all channels; calls that still run are cancelled."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
        for kept in channels.values():
            kept.channel.close()


class AsyncChannels:
    """Asyncio channels by address, all used on one event loop."""

    def __init__(self, security: Security, options: _Options = CHANNEL_OPTIONS) -> None:
        """Start without a channel, so that no event loop is needed yet."""
        self._security = security
        self._options = options
        self._channels: dict[str, _Kept[grpc.aio.Channel]] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """True when the client is closed."""
        return self._closed

    @property
    def encrypted(self) -> bool:
        """True when calls go by TLS."""
        return self._security.encrypted

    def get(self, address: str, authority: str | None = None) -> grpc.aio.Channel:
        """Return the channel to an address, which was found under the name ``authority``.

        Raises:
            RuntimeError: the client is closed.
            ValueError: the calls would go to another machine in the clear, which nobody allowed.
        """
        if self._closed:
            raise RuntimeError("the client is closed")
        self._security.check(address)
        credentials = self._security.credentials()
        channel = _usable(self._channels.pop(address, None), credentials)
        if channel is None:
            channel = self.open(address, authority)
        return _keep(self._channels, address, channel, credentials)

    def check(self, address: str) -> None:
        """Check that calls to an address may be made.

        Raises:
            ValueError: they would go to another machine in the clear, which nobody allowed.
        """
        self._security.check(address)

    def open(self, address: str, authority: str | None = None) -> grpc.aio.Channel:
        """Return a channel of the caller's own, which closes it.

        Raises:
            ValueError: the calls would go to another machine in the clear, which nobody allowed.
        """
        self._security.check(address)
        credentials = self._security.credentials()
        options = _options(self._options, self._security, authority)
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def metadata(self) -> Metadata:
        """Return what goes with every call."""
        return self._security.metadata()

    async def close(self) -> None:
        """Close all channels; calls that still run are cancelled."""
        self._closed = True
        channels, self._channels = self._channels, {}
        for kept in channels.values():
            await kept.channel.close()
