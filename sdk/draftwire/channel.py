"""Channels to verifiers: addresses, options, and one lazily made channel for each address."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeVar

import grpc
import grpc.aio

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
    # A service that comes back is found again soon; connecting gives up after 5 s instead of 20.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of a client, in order and without repetition.

    Raises:
        ValueError: no address, or one that is a URL or empty.
    """
    found = [addresses] if isinstance(addresses, str) else list(addresses)
    if not found:
        raise ValueError("a client needs the address of a verifier")
    for address in found:
        if not address.strip() or address.startswith(("http://", "https://")):
            raise ValueError(f"{address!r} is no address of a verifier: expected host:port")
    return tuple(dict.fromkeys(address.strip() for address in found))


def _options(authority: str | None) -> _Options:
    """The options of a channel; with TLS the certificate has to be for the name, not for its address."""
    return CHANNEL_OPTIONS if authority is None else (*CHANNEL_OPTIONS, ("grpc.default_authority", authority))


def _keep(channels: dict[str, ChannelT], address: str, channel: ChannelT) -> ChannelT:
    """Keep a channel as the one used last, and let go of those used longest ago when there are too many."""
    channels[address] = channel
    while len(channels) > _MOST_CHANNELS:
        del channels[next(iter(channels))]
    return channel


class Channels:
    """Sync channels by address. Safe to use from several threads."""

    def __init__(self, credentials: grpc.ChannelCredentials | None) -> None:
        """Start without a channel; with credentials they are TLS ones."""
        self._credentials = credentials
        self._channels: dict[str, grpc.Channel] = {}
        self._closed = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """True when the client is closed."""
        return self._closed

    def get(self, address: str, authority: str | None = None) -> grpc.Channel:
        """Return the channel to an address, which was found under the name ``authority``.

        Raises:
            RuntimeError: the client is closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            channel = self._channels.pop(address, None)
            if channel is None:
                options = _options(authority)
                channel = (
                    grpc.secure_channel(address, self._credentials, options=options)
                    if self._credentials is not None
                    else grpc.insecure_channel(address, options=options)
                )
            return _keep(self._channels, address, channel)

    def close(self) -> None:
        """Close all channels; calls that still run are cancelled."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()


class AsyncChannels:
    """Asyncio channels by address, all used on one event loop."""

    def __init__(self, credentials: grpc.ChannelCredentials | None) -> None:
        """Start without a channel, so that no event loop is needed yet; with credentials they are TLS ones."""
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """True when the client is closed."""
        return self._closed

    def get(self, address: str, authority: str | None = None) -> grpc.aio.Channel:
        """Return the channel to an address, which was found under the name ``authority``.

        Raises:
            RuntimeError: the client is closed.
        """
        if self._closed:
            raise RuntimeError("the client is closed")
        channel = self._channels.pop(address, None)
        if channel is None:
            options = _options(authority)
            channel = (
                grpc.aio.secure_channel(address, self._credentials, options=options)
                if self._credentials is not None
                else grpc.aio.insecure_channel(address, options=options)
            )
        return _keep(self._channels, address, channel)

    async def close(self) -> None:
        """Close all channels; calls that still run are cancelled."""
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
