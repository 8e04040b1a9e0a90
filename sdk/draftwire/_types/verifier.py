"""The verifiers of a client: their addresses and their shares of its requests."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire._types.address import check_address
from draftwire._types.quoting import quoted

_OPTION = "weight"
_DNS_NAME = re.compile(r"dns:///([A-Za-z0-9._-]+:\d{1,5})")
"""gRPC's own spelling of a DNS name. The scheme is removed, so that the SDK looks the name up itself."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """One verifier of a client, or all verifiers behind a DNS name."""

    address: str
    """The address, as host:port."""
    weight: float = 1.0
    """The verifier's share of the requests, relative to the other weights; each verifier behind a DNS name has this
    weight. A verifier with weight 0 is a standby, which gets requests only while no other can be reached."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: the address is empty or a URL, or the weight is negative or not finite.
        """
        address = self.address.strip()
        if not address or address.startswith(("http://", "https://")):
            raise ValueError(f"{quoted(self.address)} is not the address of a verifier: expected host:port")
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"{address}: weight must be a number of at least 0, got {self.weight}")
        name = _DNS_NAME.fullmatch(address)
        object.__setattr__(self, "address", name[1] if name else address)

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Returns the verifier for a text: ``host:port`` or ``host:port?weight=2``.

        Raises:
            ValueError: the text has another form.
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
"""One verifier or several, each as a ``Verifier`` or a text, ``host:port`` or ``host:port?weight=2``."""


def parse_verifiers(given: Verifiers) -> tuple[Verifier, ...]:
    """Returns the verifiers of a client, in order and without duplicates.

    Raises:
        ValueError: no verifier, an empty address, an address without a port, or one with two weights.
    """
    found: dict[str, Verifier] = {}
    for each in [given] if isinstance(given, str | Verifier) else given:
        verifier = Verifier.parse(each) if isinstance(each, str) else each
        check_address(verifier.address)
        if found.setdefault(verifier.address, verifier) != verifier:
            raise ValueError(f"{verifier.address} is given with two weights")
    if not found:
        raise ValueError("a client needs the address of at least one verifier")
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class VerifierStatus:
    """A client's view of one of its verifiers."""

    address: str
    """The verifier's address; for a DNS name that was looked up, one of the name's addresses."""
    weight: float
    """The verifier's weight."""
    reachable: bool
    """False from the time it was lost or began to drain until it serves again; it gets no requests meanwhile."""
    requests: int
    """Attempts of requests that this client has sent to it."""
    in_flight: int
    """Requests of this client that it is working on."""
    others: int
    """Requests of other clients that it reported recently; 0 if it does not report them."""
    fingerprint: str
    """``ModelInfo.fingerprint`` of its target, as last reported; empty if not reported."""
    numerics: str = ""
    """``ModelInfo.numerics`` of its target, as last reported; empty if not reported."""
