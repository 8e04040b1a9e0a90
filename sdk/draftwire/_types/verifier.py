"""The verifiers of a client: their addresses, and how much of its requests each is to get."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire._types.address import check_address
from draftwire._types.quoting import quoted

_OPTION = "weight"
_DNS_NAME = re.compile(r"dns:///([A-Za-z0-9._-]+:\d{1,5})")
"""gRPC's own spelling of a name; written without the scheme it is looked up here."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """One verifier of a client, or all that are behind a DNS name."""

    address: str
    """host:port."""
    weight: float = 1.0
    """Its share of the requests, beside the others' weights; each verifier behind a name has it. One with 0 is a
    standby: it gets requests while none of the others can be reached."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: no address, or a weight below 0 or without end.
        """
        address = self.address.strip()
        if not address or address.startswith(("http://", "https://")):
            raise ValueError(f"{quoted(self.address)} is no address of a verifier: expected host:port")
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"{address}: weight must be a number of at least 0, got {self.weight}")
        name = _DNS_NAME.fullmatch(address)
        object.__setattr__(self, "address", name[1] if name else address)

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Return the verifier of a text: ``host:port`` or ``host:port?weight=2``.

        Raises:
            ValueError: it is something else.
        """
        address, question, options = text.partition("?")
        if not question:
            return cls(address)
        name, _, value = options.partition("=")
        if name.strip() != _OPTION:
            unknown = f"{quoted(text)}: unknown option {quoted(name)}"
            raise ValueError(f"{unknown}; an address may end with ?{_OPTION}=NUMBER")
        try:
            weight = float(value)
        except ValueError:
            raise ValueError(f"{quoted(text)}: {_OPTION} must be a number of at least 0, got {quoted(value)}") from None
        return cls(address, weight)


Verifiers = str | Verifier | Sequence[str | Verifier]
"""What a client takes: one verifier or several, each as a ``Verifier`` or a text, ``host:port`` or
``host:port?weight=2``."""


def parse_verifiers(given: Verifiers) -> tuple[Verifier, ...]:
    """Return the verifiers of a client, in order and without repetition.

    Raises:
        ValueError: none, one that has no address, an address without a port, or one with two weights.
    """
    found: dict[str, Verifier] = {}
    for each in [given] if isinstance(given, str | Verifier) else given:
        verifier = Verifier.parse(each) if isinstance(each, str) else each
        check_address(verifier.address)
        if found.setdefault(verifier.address, verifier) != verifier:
            raise ValueError(f"{verifier.address} is given with two weights")
    if not found:
        raise ValueError("a client needs the address of a verifier")
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class VerifierStatus:
    """How a client sees one of its verifiers."""

    address: str
    """Its address; of a name that was looked up, one that was found behind it."""
    weight: float
    """Its weight."""
    reachable: bool
    """False after it was lost or has begun to drain, until it serves again; it gets no requests meanwhile."""
    requests: int
    """Attempts of requests that this client has sent there."""
    in_flight: int
    """Requests of this client that are there now."""
    others: int
    """Requests of others there, as it told lately; 0 where it does not tell."""
    fingerprint: str
    """``ModelInfo.fingerprint`` of its target, as it told last; empty where it has not."""
    numerics: str = ""
    """``ModelInfo.numerics`` of its target, as it reported last; empty where it has not."""
