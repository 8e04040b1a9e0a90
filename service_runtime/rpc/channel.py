"""gRPC channel options, the same on every side."""

_KEEPALIVE_INTERVAL_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000
_LEAST_PING_INTERVAL_MS = 5_000

_HANDSHAKE_MS = 10_000
"""Time that a new connection has for TLS and HTTP/2; gRPC's own default is two minutes."""
_IDLE_MS = 300_000
"""Time after which a connection without a call is closed; whoever comes back connects again without noticing."""

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


# gRPC inflates a compressed message before it looks at its size, and before anybody looks at the caller's token: of a
# few MB it makes GBs. Token ids are small; nobody here compresses.
_UNCOMPRESSED: Options = [
    ("grpc.compression_enabled_algorithms_bitset", 1),  # that of no compression
    ("grpc.per_message_decompression", 0),
]


def client_options(max_message_bytes: int) -> Options:
    """Options of a channel: keepalive, message size in bytes, and quick reconnecting: Backoff does the waiting."""
    return [
        *_KEEPALIVE,
        *_UNCOMPRESSED,
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


def server_options(max_message_bytes: int, max_connections: int, max_calls_per_connection: int) -> Options:
    """Options of a server: keepalive, message size in bytes, what may be open at once, and a port that only one server
    may hold."""
    return [
        *_KEEPALIVE,
        *_UNCOMPRESSED,
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", max_calls_per_connection),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_INTERVAL_MS),
        # The interceptor refuses what is larger than the limit, with details; these guard memory only.
        ("grpc.max_send_message_length", 2 * max_message_bytes),
        ("grpc.max_receive_message_length", 2 * max_message_bytes),
        ("grpc.so_reuseport", 0),
    ]
