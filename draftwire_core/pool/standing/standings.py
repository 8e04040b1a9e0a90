"""The standing of each drafter address: faults, speed and pauses that outlive a connection or an attachment."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.pool.standing.circuit_breaker import CircuitBreaker
from draftwire_core.pool.standing.drafter_stats import DraftingSpeed
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.address import place_of


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class DrafterClocks:
    """The pool's sources of time, in seconds with any origin; tests replace them."""

    now: Callable[[], float] = _loop_time
    """Elapsed time."""
    spent: Callable[[], float] = time.thread_time
    """CPU time of the calling thread."""


REPLACEMENT_SECONDS = 5.0
"""Minimum time between two models at an address; an earlier replacement is a fault."""
_FULL_SECONDS = 3600.0
"""Minimum time between two refills of the account for a new drafter or a new model at the address."""
_TRIAL_SECONDS = 60.0
"""Minimum time between two immediate trials of a paused drafter for a new model."""
_FIRST_OPENINGS = 4
_FIRST_SECONDS = 60.0
"""Period in which an address gets at most `_FIRST_OPENINGS` sequences because its model has not been measured yet."""


class DrafterStanding:
    """The standing of an address. It does not depend on the model that answers or the names it is attached under.

    A new model begins with the account balance of its predecessor. At most once a minute it gets an immediate trial,
    and at most once an hour a full account. So a better model recovers within seconds, and a drafter gains nothing by
    changing its model all the time.
    """

    def __init__(self, clocks: DrafterClocks) -> None:
        self.breaker = CircuitBreaker(clocks.now)
        self.pause_policy = PausePolicy()
        self.speed = DraftingSpeed()
        """Drafting speed of the model that answered last."""
        self._now = clocks.now
        self._model: bytes | None = None
        self._filled_at = self._tried_at = self._now()
        self._replaced_at = -math.inf
        self._announced = False
        """Whether the drafter has announced a model replacement and the new model has not answered yet."""
        self._first_openings: deque[float] = deque(maxlen=_FIRST_OPENINGS)

    def meet(self, model: ModelInfo) -> bool:
        """Registers the model that answers at the address. Returns False if it changed unannounced and too soon."""
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
        """Registers the drafter's notice of a model replacement. Returns the seconds until the pool may follow: 0
        unless it is too soon after the previous replacement."""
        self._announced = True
        return self._replacement_delay()

    def attached(self) -> None:
        """Registers that a drafter was created for the address."""
        self._renew()

    @property
    def goes_first(self) -> bool:
        """Whether the address may still receive requests because its model has not been measured."""
        return len(self._first_openings) < _FIRST_OPENINGS or self._now() - self._first_openings[0] > _FIRST_SECONDS

    def count_opening(self, speed: DraftingSpeed) -> None:
        """Counts a sequence opened with the model of the address that has this `speed`."""
        if not speed.measured:
            self._first_openings.append(self._now())
        speed.count_opening()

    def _replacement_delay(self) -> float:
        """Reserves the next time at which a replacement is allowed. Returns the seconds until then."""
        now = self._now()
        self._replaced_at = max(now, self._replaced_at + REPLACEMENT_SECONDS)
        return self._replaced_at - now

    def _renew(self) -> None:
        now = self._now()
        if now - self._filled_at >= _FULL_SECONDS:
            self._filled_at = self._tried_at = now
            self.pause_policy.fill()
        elif now - self._tried_at >= _TRIAL_SECONDS:
            self._tried_at = now
            self.pause_policy.try_now()


_MOST = 1024
"""Maximum number of recent addresses whose standings are kept without a living drafter."""


class DrafterStandings:
    """Standings by address: a drafter that is detached or leaves keeps its standing when it returns."""

    def __init__(self, clocks: DrafterClocks) -> None:
        self._clocks = clocks
        self._held: WeakValueDictionary[str, DrafterStanding] = WeakValueDictionary()
        """All standings in use, including those of living drafters."""
        self._latest: OrderedDict[str, DrafterStanding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def of(self, address: str) -> DrafterStanding:
        """Returns the standing of an address for which a drafter is being created. All spellings of an address have the
        same one."""
        address = place_of(address)
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
    """Returns RESOURCE_EXHAUSTED: the drafter replaces its model too often."""
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
        f"the drafter replaces its model more than once in {REPLACEMENT_SECONDS:g} s",
    )
