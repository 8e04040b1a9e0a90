"""Channels to other services, made from a service's settings."""

from draftwire.channel import AsyncChannels
from draftwire.pem import read_authorities
from draftwire.security import Security
from draftwire.tls import PUBLIC, Tls
from draftwire.token import TokenFile
from service_runtime.process.settings import ServiceSettings
from service_runtime.rpc.channel import client_options
from service_runtime.security.from_settings import named_flags


def peer_channels(settings: ServiceSettings) -> AsyncChannels:
    """Channels to other services, with this one's certificate and token. Raises StartupError when a file cannot be
    used. The caller closes them."""
    cert = settings.tls_client_cert or settings.tls_cert
    key = settings.tls_client_key or settings.tls_key
    tls: Tls | None = None
    if settings.tls_ca is not None:
        ca = None if settings.tls_ca == PUBLIC else settings.tls_ca
        if ca is not None:
            with named_flags("--tls-ca"):
                read_authorities(ca)
        tls = Tls(ca, cert, key, settings.tls_server_name)
    with named_flags("--token-file"):
        token = None if settings.token_file is None else TokenFile(settings.token_file)
    with named_flags("--tls-client-cert, --tls-client-key"):
        security = Security(tls=tls, token=token, insecure=settings.insecure)
    return AsyncChannels(security, tuple(client_options(settings.max_message_bytes)))
