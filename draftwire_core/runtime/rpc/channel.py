"""Channels to other services: their options, their creation from settings, and the delays between retries."""

import asyncio
import random

from draftwire._calls.channel import AsyncChannels
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.tls_settings import peer_security

_KEEPALIVE_INTERVAL_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000
_LEAST_PING_INTERVAL_MS = 5_000

_HANDSHAKE_MS = 10_000
"""Time limit for TLS and HTTP/2 on a new connection; gRPC's own default is two minutes."""
_IDLE_MS = 300_000
"""Time after which a connection without calls is closed; the client reconnects transparently."""

Options = list[tuple[str, int]]

# A peer that vanishes silently (a pulled cable, a frozen machine) is detected within 15 seconds.
_KEEPALIVE: Options = [
    ("grpc.keepalive_time_ms", _KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # gRPC sends no keepalive ping while a bandwidth ping of its own is pending, by default for up to a minute.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
]


# gRPC inflates a compressed message before it checks its size or the caller's token, so a few MB can become GBs. Token
# ids are small; no draftwire peer compresses.
_UNCOMPRESSED: Options = [
    ("grpc.compression_enabled_algorithms_bitset", 1),  # the bit for no compression
    ("grpc.per_message_decompression", 0),
]


def client_options(max_message_bytes: int) -> Options:
    """Returns the options of a channel: keepalive, message size in bytes, fast reconnects (Backoff sets the delays)."""
    return [
        *_KEEPALIVE,
        *_UNCOMPRESSED,
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, the time limit for connecting, 20 s by default; a busy peer needs more than a moment.
        ("grpc.min_reconnect_backoff_ms", 4_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Not shared between channels: otherwise a new channel to a peer that has come back fails immediately while an
        # older channel's connection waits for its next try.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(max_message_bytes: int, max_connections: int, max_calls_per_connection: int) -> Options:
    """Returns the options of a server: keepalive, message size in bytes, limits on connections and calls, and a port
    that only one server may hold."""
    return [
        *_KEEPALIVE,
        *_UNCOMPRESSED,
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", max_calls_per_connection),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_INTERVAL_MS),
        # The interceptor refuses larger messages with details; these limits only protect memory.
        ("grpc.max_send_message_length", 2 * max_message_bytes),
        ("grpc.max_receive_message_length", 2 * max_message_bytes),
        ("grpc.so_reuseport", 0),
    ]


class Backoff:
    """Exponential back-off with full jitter: the n-th delay is uniform between 0 and min(max, initial * 2**n).

    Full jitter keeps drafters that lost the same verifier from reconnecting at the same moment.
    """

    def __init__(self, initial_seconds: float, max_seconds: float, rng: random.Random | None = None) -> None:
        """Raises ValueError unless 0 < initial_seconds <= max_seconds."""
        if not 0 < initial_seconds <= max_seconds:
            raise ValueError(f"need 0 < initial_seconds <= max_seconds, got {initial_seconds} and {max_seconds}")
        self._initial = initial_seconds
        self._max = max_seconds
        self._ceiling = initial_seconds
        self._rng = rng if rng is not None else random.Random()

    def next_delay(self) -> float:
        """Returns the next delay in seconds."""
        delay = self._rng.uniform(0, self._ceiling)
        self._ceiling = min(self._max, self._ceiling * 2)
        return delay

    def reset(self) -> None:
        """Starts over; called after a successful try."""
        self._ceiling = self._initial

    async def wait(self) -> None:
        """Sleeps for the next delay."""
        await asyncio.sleep(self.next_delay())


def peer_channels(settings: ServiceSettings) -> AsyncChannels:
    """Returns channels to other services, with this service's certificate and token. Raises StartupError when a file
    cannot be used. The caller closes them."""
    return AsyncChannels(peer_security(settings).security, tuple(client_options(settings.max_message_bytes)))
