"""A further verifier of the target: a learner takes its texts, too, and has it draft with what was learned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from draftwire import Client, ServedRequest
from draftwire.errors import (
    DraftwireError,
    InvalidArgumentError,
    NotEnabledError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnsupportedDrafterError,
)
from draftwire_core.runtime.rpc.channel import Backoff
from draftwire_core.training.learning.learning_directory import LearningState
from draftwire_core.training.learning.seats.seat import Seat
from draftwire_core.training.refresh.traffic_follower import TrafficFollower

FINAL = (InvalidArgumentError, NotEnabledError, PermissionDeniedError, UnauthenticatedError)
"""Errors that are still there when a verifier is back."""
_ANSWER_SECONDS = 5.0
_BACKOFF, _LONGEST_BACKOFF = 1.0, 30.0


class FurtherVerifier:
    """Follows the traffic of one verifier. One that is lost, or serves another target, is asked again later."""

    def __init__(self, client: Client, tell: Callable[[str], None], *, likeliest: bool = False):
        """likeliest: whether to ask for the target's likeliest tokens."""
        self._client = client
        self._tell = tell
        self._likeliest = likeliest
        self._follower: TrafficFollower | None = None
        self._backoff = Backoff(_BACKOFF, _LONGEST_BACKOFF)
        self._not_before = -math.inf
        """Time of the next attempt to connect, by time.monotonic."""
        self._told = ""
        """The reason that was told last why its texts are missing."""
        self._promoted: int | None = None
        """Number of the version that drafts there; None if it is not known."""

    def take(self, seat: Seat, state: LearningState) -> list[ServedRequest]:
        """Returns the requests finished since the last call, and has the verifier draft with what is promoted.

        Raises DraftwireError if it refuses this caller, or does not share its traffic.
        """
        if time.monotonic() < self._not_before:
            return []
        try:
            follower = self._following(state)
            if follower is None:
                return []
            if self._promoted != state.promoted:
                try:
                    seat.follow(self._client, state)
                except UnsupportedDrafterError as error:  # it does not see the directory, for example
                    self._tell(f"{self._client.address}: cannot draft with what was learned: {error}")
                self._promoted = state.promoted
            return follower.take(0.0)
        except FINAL:
            raise
        except (DraftwireError, TimeoutError) as error:
            self._wait(f"{self._client.address}: verifier lost: {error}; its texts are learned from when it is back")
            return []

    def close(self) -> None:
        """Stops following."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _following(self, state: LearningState) -> TrafficFollower | None:
        """Returns the follower of a verifier with the learner's target; None if it has another one now."""
        if self._follower is not None and self._follower.begun == 1:
            return self._follower
        self.close()  # after a lost connection another process may serve
        self._promoted = None
        if self._client.model_info(timeout=_ANSWER_SECONDS).fingerprint != state.target:
            self._wait(f"{self._client.address}: has another target; its texts are left out")
            return None
        self._follower = TrafficFollower(self._client, likeliest=self._likeliest)
        self._follower.wait_until_following(_ANSWER_SECONDS)
        self._backoff.reset()
        self._told = ""
        self._tell(f"following {self._client.address}, too")
        return self._follower

    def _wait(self, reason: str) -> None:
        """Asks again later. reason: said once."""
        self.close()
        if reason != self._told:
            self._tell(reason)
        self._told = reason
        self._not_before = time.monotonic() + self._backoff.next_delay()
