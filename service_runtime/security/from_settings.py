"""What protects a service, made from its settings; what is wrong there is told with the flag's name."""

from collections.abc import Iterator
from contextlib import contextmanager

from draftwire.loopback import is_loopback_host
from draftwire.pem import read_identity
from service_runtime.process.address import Address
from service_runtime.process.settings import ServiceSettings
from service_runtime.process.startup_error import StartupError
from service_runtime.security.accepted_tokens import AcceptedTokens
from service_runtime.security.server_tls import ServerTls


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
    with named_flags("--tls-cert, --tls-key"):
        read_identity(settings.tls_cert, settings.tls_key)
    with named_flags("--tls-client-ca"):
        return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def accepted_tokens(settings: ServiceSettings) -> AcceptedTokens | None:
    """The tokens that callers need; None where they need none. Raises StartupError when the file cannot be used."""
    if settings.accepted_tokens is None:
        return None
    with named_flags("--accepted-tokens"):
        return AcceptedTokens(settings.accepted_tokens)


@contextmanager
def named_flags(flags: str) -> Iterator[None]:
    """A ValueError becomes a StartupError that begins with these flags."""
    try:
        yield
    except ValueError as error:
        raise StartupError(f"{flags}: {error}") from error
