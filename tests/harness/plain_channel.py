"""Opens unencrypted channels with the services' options."""

import grpc

from draftwire_core.runtime.rpc.channel import client_options


def open_channel(address: str, max_message_bytes: int) -> grpc.aio.Channel:
    """Returns a channel to HOST:PORT that connects at the first call. The caller closes it."""
    return grpc.aio.insecure_channel(address, options=client_options(max_message_bytes))
