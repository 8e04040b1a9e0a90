"""Creates a server's TLS and accepted tokens from its settings; errors name the flag."""

from draftwire._auth.pem import read_identity
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import named_flags
from draftwire_core.runtime.process.tls_settings import check_listen
from draftwire_core.runtime.security.accepted_tokens import AcceptedTokens
from draftwire_core.runtime.security.server_tls import ServerTls


def server_tls(settings: ServiceSettings) -> ServerTls | None:
    """Returns the TLS of the server; None if it serves in plaintext.

    Raises StartupError if a file cannot be used, or if others could read the traffic and --insecure does not allow it.
    """
    check_listen(settings)
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    with named_flags("--tls-cert, --tls-key"):
        read_identity(settings.tls_cert, settings.tls_key)
    with named_flags("--tls-client-ca"):
        return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def accepted_tokens(settings: ServiceSettings) -> AcceptedTokens | None:
    """Returns the tokens that callers need; None if they need none. Raises StartupError for an unusable file."""
    if settings.accepted_tokens is None:
        return None
    with named_flags("--accepted-tokens"):
        return AcceptedTokens(settings.accepted_tokens)
