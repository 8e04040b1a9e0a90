"""Rules for announcements of drafters: the hosts that may be announced, and the callers that may announce a name."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Self

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.runtime.errors import ServiceError, failed_precondition, invalid_field
from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.security.caller import Caller
from draftwire_core.runtime.security.roles import Role

_ANY_LABELS = "*."


class AnnouncementRules:
    """The operator's limits on announcements. The verifier calls an announced address and sends it prompts and its
    token, so without limits a caller that may announce drafters chooses where they go."""

    def __init__(self, hosts: Sequence[str] = (), *, token_in_the_clear: bool = False) -> None:
        """hosts: allowed hosts, each a name, `*.` with a domain, an IP address or a network; empty allows all.
        token_in_the_clear: whether the verifier sends a token of its own without TLS and requires none of announcers.

        Raises ValueError for an invalid host.
        """
        self._networks = [network for network in map(_network, hosts) if network is not None]
        self._names = [_name(host) for host in hosts if _network(host) is None]
        self._restricted = bool(hosts)
        self._token_in_the_clear = token_in_the_clear

    @classmethod
    def of(cls, settings: ServiceSettings, hosts: Sequence[str]) -> Self:
        """Returns the rules of a service with these settings. Raises ValueError for an invalid host."""
        token_in_the_clear = settings.token_file is not None and settings.tls_ca is None
        return cls(hosts, token_in_the_clear=token_in_the_clear and settings.accepted_tokens is None)

    def check(self, address: str) -> None:
        """Raises ServiceError unless a drafter at an address, HOST:PORT, may announce itself."""
        if self._token_in_the_clear:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_NOT_ENABLED,
                "anyone could announce a drafter here and receive this verifier's token: with --token-file, "
                "announcing requires --accepted-tokens or --tls-ca",
            )
        host = Address.parse(address).host.lower().rstrip(".")
        if self._restricted and not self._allows(host):
            raise invalid_field("address", f"{host!r} is not among the hosts that may be announced (--announced-host)")

    def _allows(self, host: str) -> bool:
        try:
            own = ipaddress.ip_address(host)
        except ValueError:
            return any(
                host.endswith(name.removeprefix("*")) if name.startswith(_ANY_LABELS) else host == name
                for name in self._names
            )
        return any(own in network for network in self._networks)


def check_announcer(drafter: PooledDrafter, caller: Caller | None, *, leaving: bool) -> None:
    """Raises ServiceError if a drafter was announced with another token, or if it is to leave and was not announced
    with a token. Administrators are exempt. Callers are not distinguished if tokens are not required."""
    if caller is None or Role.ADMIN in caller.roles or drafter.announcer == caller.name:
        return
    if drafter.announcer is not None or leaving:
        raise _others(drafter.name, caller)


def check_dismissed(name: str, announcer: str | None, caller: Caller | None) -> None:
    """Raises ServiceError if a drafter that was dismissed was announced with another token: a stranger neither lets
    it come back nor keeps it away. Administrators are exempt. announcer: as in `PooledDrafter`."""
    if caller is not None and Role.ADMIN not in caller.roles and announcer not in (None, caller.name):
        raise _others(name, caller)


def _others(name: str, caller: Caller) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.ALREADY_EXISTS,
        ErrorReason.ERROR_REASON_DRAFTER_EXISTS,
        f"drafter {name} was not announced with the token of {caller.name}",
    )


def check_address_owner(drafter: PooledDrafter, caller: Caller | None) -> None:
    """Raises ServiceError if a caller may not announce another name at a drafter's address: the address belongs to its
    first name, and so to who announced that. Administrators are exempt. Callers are not distinguished if tokens are not
    required."""
    if caller is None or Role.ADMIN in caller.roles or drafter.announcer == caller.name:
        return
    raise ServiceError(
        grpc.StatusCode.ALREADY_EXISTS,
        ErrorReason.ERROR_REASON_DRAFTER_EXISTS,
        f"address: {drafter.address} belongs to drafter {drafter.name}, which was not announced with the token of "
        f"{caller.name}",
    )


def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(host.strip("[]"))
    except ValueError:
        return None


def _name(host: str) -> str:
    """Returns the canonical form of a host name. Raises ValueError."""
    name = host.lower().rstrip(".")
    labels = name.removeprefix(_ANY_LABELS).split(".")
    if not all(label and label.replace("-", "").replace("_", "").isalnum() and label.isascii() for label in labels):
        raise ValueError(f"must be a name, *.DOMAIN, an IP address or a network such as 10.0.0.0/8, got {host!r}")
    return name
