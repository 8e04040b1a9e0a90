"""What protects a service, made from its settings; what is wrong there is told with the flag's name."""

from collections.abc import Iterator
from contextlib import contextmanager

from draftwire import Tls, TokenFile
from draftwire._auth.pem import read_authorities, read_identity
from draftwire._auth.security import Security
from draftwire._auth.tls import PUBLIC
from draftwire._calls.channel import AsyncChannels
from draftwire._types.address import is_loopback_host
from service_runtime.accepted_tokens import AcceptedTokens
from service_runtime.address import Address
from service_runtime.channel import client_options
from service_runtime.server_tls import ServerTls
from service_runtime.settings import ServiceSettings
from service_runtime.startup_error import StartupError


def server_tls(settings: ServiceSettings) -> ServerTls | None:
    """TLS of the server; None where it serves in the clear.

    Raises StartupError: a file cannot be used, or others could read what goes in the clear, which nobody allowed.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        if not settings.insecure and not is_loopback_host(Address.parse(settings.listen).host):
            raise StartupError(
                f"--listen: {settings.listen} is open to other machines, and nothing would be encrypted: give "
                "--tls-cert and --tls-key, or allow it with --insecure"
            )
        return None
    with _named("--tls-cert, --tls-key"):
        read_identity(settings.tls_cert, settings.tls_key)
    with _named("--tls-client-ca"):
        return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def accepted_tokens(settings: ServiceSettings) -> AcceptedTokens | None:
    """The tokens that callers need; None where they need none. Raises StartupError when the file cannot be used."""
    if settings.accepted_tokens is None:
        return None
    with _named("--accepted-tokens"):
        return AcceptedTokens(settings.accepted_tokens)


def peer_channels(settings: ServiceSettings) -> AsyncChannels:
    """Channels to other services, with this one's certificate and token. Raises StartupError when a file cannot be
    used. The caller closes them."""
    cert = settings.tls_client_cert or settings.tls_cert
    key = settings.tls_client_key or settings.tls_key
    tls: Tls | None = None
    if settings.tls_ca is not None:
        ca = None if settings.tls_ca == PUBLIC else settings.tls_ca
        if ca is not None:
            with _named("--tls-ca"):
                read_authorities(ca)
        tls = Tls(ca, cert, key, settings.tls_server_name)
    with _named("--token-file"):
        token = None if settings.token_file is None else TokenFile(settings.token_file)
    with _named("--tls-client-cert, --tls-client-key"):
        security = Security(tls=tls, token=token, insecure=settings.insecure)
    return AsyncChannels(security, tuple(client_options(settings.max_message_bytes)))


@contextmanager
def _named(flags: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise StartupError(f"{flags}: {error}") from error
