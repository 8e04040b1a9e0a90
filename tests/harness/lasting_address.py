"""Addresses that stay free for a service that starts later, or restarts."""

import random
import socket

# Below the ephemeral ports, so that no connection of another test takes one meanwhile.
PORTS = range(20_000, 30_000)


def lasting_address() -> str:
    """Returns a HOST:PORT on this machine where nothing listens."""
    while True:
        address = ("127.0.0.1", random.SystemRandom().choice(PORTS))
        try:
            socket.create_server(address).close()
        except OSError:
            continue
        return "{}:{}".format(*address)
