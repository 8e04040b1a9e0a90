"""gRPC channel options, the same on every side."""

import grpc

_KEEPALIVE_INTERVAL_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000
_LEAST_PING_INTERVAL_MS = 5_000

Options = list[tuple[str, int]]

# A peer that vanished without a word (a pulled cable, a frozen machine) is noticed within 15 seconds.
_KEEPALIVE: Options = [
    ("grpc.keepalive_time_ms", _KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # While a ping of gRPC's own is under way (it measures bandwidth with them) none is sent for keepalive, and by
    # default such a ping may take a minute.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
]


def client_options(max_message_bytes: int) -> Options:
    """Options of a channel: keepalive, message size in bytes, and quick reconnecting: Backoff does the waiting."""
    return [
        *_KEEPALIVE,
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name the time that connecting may take, and by default 20 s; a busy peer needs more than a moment.
        ("grpc.min_reconnect_backoff_ms", 4_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Not shared between channels: a new channel to a peer that has come back would fail at once, without trying,
        # while an older channel's connection waits to be tried again.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def server_options(max_message_bytes: int) -> Options:
    """Options of a server: keepalive, message size in bytes, and a port that only one server may hold."""
    return [
        *_KEEPALIVE,
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_INTERVAL_MS),
        # The interceptor refuses what is larger than the limit, with details; these guard memory only.
        ("grpc.max_send_message_length", 2 * max_message_bytes),
        ("grpc.max_receive_message_length", 2 * max_message_bytes),
        ("grpc.so_reuseport", 0),
    ]


def open_channel(address: str, max_message_bytes: int) -> grpc.aio.Channel:
    """A channel to HOST:PORT; it connects at the first call. The caller closes it."""
    return grpc.aio.insecure_channel(address, options=client_options(max_message_bytes))
