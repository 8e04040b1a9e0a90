"""Channels to other services, created from a service's settings."""

from draftwire._calls.channel import AsyncChannels
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.tls_settings import peer_security
from draftwire_core.runtime.rpc.channel import client_options


def peer_channels(settings: ServiceSettings) -> AsyncChannels:
    """Returns channels to other services, with this service's certificate and token. Raises StartupError when a file
    cannot be used. The caller closes them."""
    return AsyncChannels(peer_security(settings).security, tuple(client_options(settings.max_message_bytes)))
