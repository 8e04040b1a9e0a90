"""The standing of each drafter address: faults, speed and pauses that outlive a connection or an attachment."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict, deque
from weakref import WeakValueDictionary

import grpc

from drafter_pool.drafter.circuit_breaker import CircuitBreaker
from drafter_pool.drafter.clocks import DrafterClocks
from drafter_pool.drafter.drafter_stats import DraftingSpeed
from drafter_pool.drafter.pause_policy import PausePolicy
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import ModelInfo
from service_runtime.errors import ServiceError

REPLACEMENT_SECONDS = 5.0
"""From one model of an address to the next; an earlier one is a fault."""
_FULL_SECONDS = 3600.0
"""Least seconds between two times that an account is filled because a drafter or its model is new at the address."""
_TRIAL_SECONDS = 60.0
"""Least seconds between two times that a paused drafter is tried at once because its model is new."""
_FIRST_OPENINGS = 4
_FIRST_SECONDS = 60.0
"""So many sequences in so many seconds go to a drafter for the reason that nothing is known of it yet."""


class DrafterStanding:
    """The standing of an address, whatever model answers there and under whatever names it is attached.

    A new model begins with what the one before it has left in the account. It is worth a trial once a minute, and a
    full account once an hour, so a better model recovers within seconds, and one that is always new gains nothing.
    """

    def __init__(self, clocks: DrafterClocks) -> None:
        self.breaker = CircuitBreaker(clocks.now)
        self.credit = PausePolicy()
        self.speed = DraftingSpeed()
        """Of the model that answered last."""
        self._now = clocks.now
        self._model: bytes | None = None
        self._filled_at = self._tried_at = self._now()
        self._replaced_at = -math.inf
        self._announced = False
        """The drafter has said that its model was replaced, and the new one has not answered yet."""
        self._first_openings: deque[float] = deque(maxlen=_FIRST_OPENINGS)

    def meet(self, model: ModelInfo) -> bool:
        """A model answers at the address. False if it is another one, unannounced and too soon."""
        digest = hashlib.sha256(model.SerializeToString(deterministic=True)).digest()
        known, self._model = self._model, digest
        if known == digest or known is None:
            self._announced = False
            return True
        self.speed = DraftingSpeed()
        self._renew()
        announced, self._announced = self._announced, False
        return announced or self._replacement_delay() == 0

    def replaced(self) -> float:
        """The drafter says that its model was replaced. Seconds until that may be followed; 0 unless it is too soon
        after the replacement before."""
        self._announced = True
        return self._replacement_delay()

    def attached(self) -> None:
        """A drafter was made for the address."""
        self._renew()

    @property
    def goes_first(self) -> bool:
        """Whether the address may have requests for the reason that nothing is known of its model."""
        return len(self._first_openings) < _FIRST_OPENINGS or self._now() - self._first_openings[0] > _FIRST_SECONDS

    def count_opening(self, speed: DraftingSpeed) -> None:
        """A sequence was opened with a model of the address, of this speed."""
        if not speed.measured:
            self._first_openings.append(self._now())
        speed.count_opening()

    def _replacement_delay(self) -> float:
        """Take the next time at which a replacement is due, and how long it is until then."""
        now = self._now()
        self._replaced_at = max(now, self._replaced_at + REPLACEMENT_SECONDS)
        return self._replaced_at - now

    def _renew(self) -> None:
        now = self._now()
        if now - self._filled_at >= _FULL_SECONDS:
            self._filled_at = self._tried_at = now
            self.credit.fill()
        elif now - self._tried_at >= _TRIAL_SECONDS:
            self._tried_at = now
            self.credit.try_now()


_MOST = 1024
"""Addresses that are remembered beside those that are attached."""


class DrafterStandings:
    """Standings by address: a drafter that is detached, or leaves, and comes back, is no other one."""

    def __init__(self, clocks: DrafterClocks) -> None:
        self._clocks = clocks
        self._held: WeakValueDictionary[str, DrafterStanding] = WeakValueDictionary()
        """All standings that are in use, those of living drafters among them."""
        self._latest: OrderedDict[str, DrafterStanding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def of(self, address: str) -> DrafterStanding:
        """The standing of an address for which a drafter is made."""
        standing = self._held.get(address)
        if standing is None:
            standing = self._held[address] = DrafterStanding(self._clocks)
        self._latest[address] = standing
        self._latest.move_to_end(address)
        if len(self._latest) > _MOST:
            self._latest.popitem(last=False)
        standing.attached()
        return standing


def replaced_too_soon() -> ServiceError:
    """The fault of a drafter that replaces its model too often (RESOURCE_EXHAUSTED)."""
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
        f"the drafter replaces its model more often than once in {REPLACEMENT_SECONDS:g} s",
    )
