"""A client's view of its verifiers: their addresses, their load, and the one to use next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from draftwire._calls.names import is_name
from draftwire._calls.spreading import SpreadPolicy, choose, ranked
from draftwire._types.verifier import Verifier, VerifierStatus
from draftwire.errors import ModelMismatchError

NAMES_SECONDS = 30.0
"""Interval at which DNS names are looked up again, in the background."""
_REPORT_SECONDS = 10.0
"""Time for which a verifier's report of its load is used, and for which its model counts as the same."""
_FIRST_PROBE_SECONDS = 0.1
_LONGEST_PROBE_SECONDS = 2.0


@dataclass(slots=True)
class _State:
    """The state of one verifier."""

    in_flight: int = 0
    requests: int = 0
    others: int = 0
    told_at: float = float("-inf")
    fingerprint: str = ""
    numerics: str | None = None
    """Empty if it reports none, None if it has not been asked since it was last lost."""
    reachable: bool = True
    probe_at: float = 0.0
    probe_wait: float = _FIRST_PROBE_SECONDS

    def others_at(self, now: float) -> int:
        return self.others if now - self.told_at < _REPORT_SECONDS else 0

    def load(self, now: float) -> int:
        return self.in_flight + self.others_at(now)


class Endpoints:
    """The verifiers of a client. Safe to use from several threads; never blocks or sends.

    Requests are spread by their keys (see ``spreading``). All other calls go to the verifier in use, until it is lost.
    A verifier that is lost or drains gets no requests until it reports that it serves again. The transport checks the
    health of the verifiers that ``due_probes`` returns.

    A DNS name stands for all its addresses. The transport looks names up before a call when they are ``stale`` (at the
    start, and after an address was lost), and in the background when they are ``old``.
    """

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        policy: SpreadPolicy | None = None,
        *,
        look_up: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts with the first verifier in use; without ``look_up``, gRPC resolves DNS names."""
        self.policy = policy or SpreadPolicy()
        self._configured = tuple(verifiers)
        self._names = tuple(each.address for each in verifiers if look_up and is_name(each.address))
        self._found: dict[str, tuple[str, ...]] = {}
        self._verifiers = {each.address: each for each in verifiers}
        self._states = {address: _State() for address in self._verifiers}
        self._current = next(iter(self._verifiers))
        self._stale = bool(self._names)
        self._looked_up = 0.0
        self._authorities: dict[str, str] = {}
        self._clock = clock
        self._lock = threading.RLock()  # reentrant: garbage collection may release a dropped stream anywhere

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses; a DNS name is replaced by its addresses once it was looked up."""
        return tuple(self._verifiers)

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names to look up."""
        return self._names

    @property
    def stale(self) -> bool:
        """Whether the names must be looked up before the next call."""
        return self._stale

    @property
    def current(self) -> str:
        """The address in use."""
        return self._current

    def authority(self, address: str) -> str | None:
        """Returns the DNS name and port that an address was found under, if any."""
        return self._authorities.get(address)

    def old(self) -> bool:
        """Returns whether the caller is to look the names up in the background; True only once per interval."""
        with self._lock:
            now = self._clock()
            old = bool(self._names) and not self._stale and now - self._looked_up >= NAMES_SECONDS
            if old:
                self._looked_up = now
            return old

    def update(self, found: Mapping[str, tuple[str, ...]]) -> None:
        """Sets the addresses of DNS names. A name whose lookup failed (no addresses) keeps its previous ones.

        The verifier in use stays in use if it is still among them.
        """
        with self._lock:
            self._found.update({name: addresses for name, addresses in found.items() if addresses})
            verifiers: dict[str, Verifier] = {}
            self._authorities = {}
            for each in self._configured:
                for address in self._found.get(each.address, (each.address,)):
                    verifiers.setdefault(address, Verifier(address, each.weight))
                    if address != each.address:
                        self._authorities.setdefault(address, each.address)
            self._verifiers = verifiers
            self._states = {
                address: state for address, state in self._states.items() if address in verifiers or state.in_flight
            }
            for address in verifiers:
                self._states.setdefault(address, _State())
            if self._current not in verifiers:
                self._current = next(iter(verifiers))
            self._looked_up = self._clock()
            self._stale = False

    def take(
        self, key: bytes, without: Collection[str] = (), never: Collection[str] = (), numerics: str | None = None
    ) -> str:
        """Returns the address for a request with this key, and counts the request there until ``release``.

        Args:
            key: the beginning of its prompt.
            without: addresses tried without success; returned only if there is no other.
            never: addresses that cannot continue the request; never all addresses.
            numerics: numerics of the verifier that began the request; verifiers with others are returned only if there
                is no other.
        """
        with self._lock:
            everyone = [each for each in self._verifiers.values() if each.address not in never]
            there = [each for each in everyone if self._states[each.address].reachable]
            untried, untried_there = ([e for e in some if e.address not in without] for some in (everyone, there))
            candidates = self._alike(untried_there or untried or there or everyone, numerics)
            now = self._clock()
            loads = {each.address: self._states[each.address].load(now) for each in candidates}
            address = choose(ranked(key, candidates), loads, self.policy.load_bound).address
            state = self._states[address]
            state.in_flight += 1
            state.requests += 1
            return address

    def _alike(self, verifiers: list[Verifier], numerics: str | None) -> list[Verifier]:
        """Returns the verifiers known to have these numerics, else those that may have them, else all."""
        if numerics is None:
            return verifiers
        known = [each for each in verifiers if self._states[each.address].numerics == numerics]
        return known or [each for each in verifiers if self._states[each.address].numerics is None] or verifiers

    def replaceable(self, address: str) -> bool:
        """Returns whether another verifier can continue a request of this one, by the numerics known so far."""
        with self._lock:
            state = self._states.get(address)  # None if its DNS name no longer resolves to it
            own = state.numerics if state is not None else None
            others = [self._states[other].numerics for other in self._verifiers if other != address]
            return any(own is None or each is None or each == own for each in others)

    def reachable(self, without: Collection[str] = ()) -> bool:
        """Returns whether any verifier outside ``without`` is believed to be reachable."""
        with self._lock:
            return any(self._states[each].reachable for each in self._verifiers if each not in without)

    def release(self, address: str) -> None:
        """Stops counting a request that ``take`` has counted."""
        with self._lock:
            self._states[address].in_flight -= 1

    def told(self, address: str, fingerprint: str, requests: int | None, numerics: str = "") -> None:
        """Records what a verifier reported when it admitted a request.

        Args:
            address: address of the verifier.
            fingerprint: fingerprint of its target; empty if not reported.
            requests: number of its requests, this one included; None if not reported.
            numerics: numerics of its target; empty if not reported. Verifiers may have different numerics.

        Raises:
            ModelMismatchError: another verifier of this client has another target.
        """
        with self._lock:
            state = self._states.get(address)
            if state is None:  # its DNS name no longer resolves to it
                return
            if requests is not None:
                state.others = max(0, requests - state.in_flight)
                state.told_at = self._clock()
            state.numerics = numerics
            state.fingerprint = ""
            for other in self._verifiers if fingerprint else ():
                if (theirs := self._states[other].fingerprint) not in ("", fingerprint):
                    if self._clock() - self._states[other].told_at >= _REPORT_SECONDS:
                        self._states[other].fingerprint = ""  # it may have another model by now, as this one has
                    raise ModelMismatchError(
                        f"the verifiers of this client serve different target models: {address} has the fingerprint "
                        f"{fingerprint[:12]}, {other} has {theirs[:12]}"
                    )
            state.fingerprint = fingerprint

    def computes(self, address: str, numerics: str) -> None:
        """Records the numerics of a verifier that could not continue a request because of them."""
        with self._lock:
            if address in self._states:
                self._states[address].numerics = numerics

    def move_on(self, address: str) -> None:
        """Switches to the next address, unless another call has already switched from this one."""
        with self._lock:
            self._move_on(address)

    def lost(self, address: str) -> None:
        """Marks an address as lost, so that it gets no requests until it serves again."""
        with self._lock:
            state = self._states.get(address)
            if state is not None and state.reachable:
                state.reachable = False
                state.fingerprint = ""  # it may return with another model
                state.numerics = None
                state.others = 0
                state.probe_wait = _FIRST_PROBE_SECONDS
                state.probe_at = self._clock()
            self._move_on(address)
            self._stale = bool(self._names)

    def _move_on(self, address: str) -> None:
        if self._current == address:
            addresses = list(self._verifiers)
            at = addresses.index(address)
            following = [*addresses[at + 1 :], *addresses[: at + 1]]
            self._current = next((each for each in following if self._states[each].reachable), following[0])

    def due_probes(self) -> list[str]:
        """Returns the lost addresses whose health check is due now, and schedules their next one."""
        with self._lock:
            now = self._clock()
            states = ((address, self._states[address]) for address in self._verifiers)
            due = [address for address, state in states if not state.reachable and state.probe_at <= now]
            for address in due:
                state = self._states[address]
                state.probe_at = now + state.probe_wait
                state.probe_wait = min(2 * state.probe_wait, _LONGEST_PROBE_SECONDS)
            return due

    def serves(self, address: str) -> None:
        """Marks an address as reachable again."""
        with self._lock:
            if address in self._states:
                self._states[address].reachable = True

    def statuses(self) -> list[VerifierStatus]:
        """Returns the client's view of each verifier."""
        with self._lock:
            now = self._clock()
            return [
                VerifierStatus(
                    address=address,
                    weight=each.weight,
                    reachable=(state := self._states[address]).reachable,
                    requests=state.requests,
                    in_flight=state.in_flight,
                    others=state.others_at(now),
                    fingerprint=state.fingerprint,
                    numerics=state.numerics or "",
                )
                for address, each in self._verifiers.items()
            ]
