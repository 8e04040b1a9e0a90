"""Retries and failover of calls.

A call whose verifier is unreachable moves on to another. So does an interrupted stream, which the next verifier resumes
after the tokens received. Calls are retried only after a lost connection, at a verifier that shuts down, and at full
verifiers: a running request waits for a place, a new one tries each of the others. Every other error is final. A
request whose verifier was lost twice without sending it a token may itself be the cause: it fails instead of going to a
third.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Literal

import grpc

from draftwire._calls.deadline import Deadline
from draftwire._calls.endpoints import Endpoints
from draftwire.errors import (
    AtCapacityError,
    DeadlineExceededError,
    DraftwireError,
    ErrorReason,
    NumericsMismatchError,
    UnavailableError,
)
from draftwire.v1 import verifier_service_pb2 as pb

_BROKEN_CODES = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
)
"""Status codes with which gRPC reports a lost connection or stream."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry policy of a client for verifiers that cannot be reached."""

    attempts_per_address: int = 4
    """Attempts at each address, in turn, before the error is raised. The count restarts when a stream gets tokens."""
    initial_backoff: float = 0.1
    """Seconds to wait after each address has failed once; doubled each time."""
    max_backoff: float = 2.0
    """Longest wait between two attempts, in seconds."""
    fruitless_losses: int = 2
    """Number of times that a request may lose a verifier, the same or another, before its first token from it. Then the
    request fails, because it may be the cause. The count restarts after each token. Verifiers that were not reached or
    that shut down do not count."""
    on_other_numerics: Literal["fail", "restart"] = "fail"
    """Behaviour of an interrupted request if only verifiers with other numerics are left: ``"fail"`` raises
    ``NumericsMismatchError``; ``"restart"`` generates the whole text again, with the same prompt and seed. A restart is
    possible only for methods that return whole results; a stream has already handed out text, so it always fails."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: fewer than one attempt or loss, a negative wait, or an unknown ``on_other_numerics``.
        """
        if self.on_other_numerics not in ("fail", "restart"):
            raise ValueError(f"on_other_numerics must be 'fail' or 'restart', got {self.on_other_numerics!r}")
        if (
            min(self.attempts_per_address, self.fruitless_losses) < 1
            or self.initial_backoff < 0
            or self.max_backoff < 0
        ):
            raise ValueError(f"attempts and losses must be at least 1 and waits at least 0: {self}")


class Attempts:
    """The attempts of one call: their addresses and waits. Safe to use from several threads."""

    def __init__(
        self,
        endpoints: Endpoints,
        policy: RetryPolicy,
        *,
        key: bytes | None = None,
        repeatable: bool = True,
        stays: bool = False,
    ) -> None:
        """Starts before the first attempt.

        Args:
            endpoints: the verifiers to choose from.
            policy: number of attempts, and waits between them.
            key: key that selects the verifier (see ``spreading``); None selects the one in use. A call with a key
                counts as load of its verifier until ``end``.
            repeatable: False allows one attempt, and another only after a service that shuts down refused it.
            stays: True repeats the call only at its first verifier, because it changes something there.
        """
        self._endpoints = endpoints
        self._policy = policy
        self.key = key
        """The key; to be set before the first attempt."""
        self._repeatable = repeatable
        self._stays = stays
        self._address = endpoints.current
        self._taken: str | None = None
        self._failures = 0
        self._tried: set[str] = set()
        self._begun = False
        self._fruitless: list[str] = []
        """Addresses of the attempts since the last token that were lost without getting one."""
        self._got_token = False
        """Whether this attempt has got a token."""
        self._full: AtCapacityError | None = None
        self._numerics: str | None = None
        self._beginner = ""
        self._different: set[str] = set()
        """Verifiers that cannot continue the request."""
        self._mismatch: NumericsMismatchError | None = None
        self.lost_by: DraftwireError | None = None
        """The error of the last lost attempt since the last progress."""
        self._lock = threading.Lock()

    def next_address(self) -> str:
        """Returns the address for the next attempt.

        Raises:
            NumericsMismatchError: the DNS name no longer resolves to any verifier that could continue the request.
        """
        if self._mismatch is not None and not self._alike:
            raise self._mismatch
        self._got_token = False
        if self.key is not None or self._different:
            numerics = self._numerics if self._begun else None
            address = self._endpoints.take(self.key or b"", self._tried, self._different, numerics)
            with self._lock:
                self._address = self._taken = address
        elif not (self._stays and self._failures):
            self._address = self._endpoints.current
        return self._address

    def read(self, response: object) -> None:
        """Records what a response reports about its verifier.

        Raises:
            ModelMismatchError: another verifier has another target.
        """
        if isinstance(response, pb.GenerateResponse) and response.HasField("started"):
            started = response.started
            if not self._begun:
                self._numerics, self._beginner = started.numerics, self._address
            if self.key is not None:
                requests = started.requests if started.HasField("requests") else None
                self._endpoints.told(self._address, started.model_fingerprint, requests, started.numerics)

    def succeeded(self) -> None:
        """Records progress, which resets the counts of failures."""
        if self._failures or not self._begun:
            self._endpoints.serves(self._address)
        self._failures = 0
        self._tried.clear()
        self._full = None
        self.lost_by = None
        self._begun = self._got_token = True
        self._fruitless.clear()

    def failed(self, error: DraftwireError, deadline: float | None = None, *, taken: bool = False) -> float:
        """Returns the seconds to wait before the next attempt, which is not later than the deadline.

        Args:
            error: the error of the attempt.
            deadline: deadline of the call, by ``time.monotonic``.
            taken: whether the verifier had received the request (see ``has_receipt``).

        Raises:
            UnavailableError: too many verifiers that had the request were lost.
            DraftwireError: the error itself, if there is no further attempt.
        """
        self.end()
        if isinstance(error, NumericsMismatchError):
            return self._differs(error)
        if isinstance(error, AtCapacityError) and (self._begun or self.key is not None):
            return self._until(deadline, self._refused(error))
        if not is_loss(error):
            raise error
        self._failures += 1
        self.lost_by = error
        self._tried.add(self._address)
        addresses = (self._address,) if self._stays else self._alike
        final = self._failures >= self._policy.attempts_per_address * len(addresses)
        final = final or not (self._repeatable or error.reason == ErrorReason.SHUTTING_DOWN)
        if final or not self._stays:
            self._endpoints.lost(self._address)
        if taken and not self._got_token and error.reason != ErrorReason.SHUTTING_DOWN:
            self._fruitless.append(self._address)
            if len(self._fruitless) >= self._policy.fruitless_losses:
                lost = " and ".join(dict.fromkeys(self._fruitless))
                raise UnavailableError(
                    f"the verifiers at {lost} were lost after they received this request and before they sent a "
                    f"token; it may be the cause, so it is not sent again: {error.message}",
                    raw=error.raw,
                ) from error
        if final and self._mismatch is not None:
            raise self._mismatch from error
        if final:
            error.message = f"no answer from {', '.join(addresses)}: {error.message}"
            raise error
        rounds, rest = divmod(self._failures, len(addresses))
        if rest:
            return 0.0
        self._tried.clear()
        wait = min(self._policy.max_backoff, self._policy.initial_backoff * 2.0 ** min(rounds - 1, 999))
        return self._until(deadline, wait)

    @property
    def replaceable(self) -> bool:
        """Whether another verifier could continue the request if this one were lost."""
        return self._endpoints.replaceable(self._address)

    def begin_anew(self) -> None:
        """Resets the attempts, so that the next one is that of a new request."""
        self._failures = 0
        self._tried.clear()
        self._different.clear()
        self._full = self._mismatch = None
        self._begun = False

    def end(self) -> None:
        """Stops counting the call as load. Calling it again does nothing."""
        with self._lock:
            taken, self._taken = self._taken, None
        if taken is not None:
            self._endpoints.release(taken)

    @property
    def _alike(self) -> tuple[str, ...]:
        """Addresses not known to be unable to continue the request."""
        return tuple(each for each in self._endpoints.addresses if each not in self._different)

    def _differs(self, error: NumericsMismatchError) -> float:
        """Moves on to verifiers that may have the numerics of the first one, which may itself return."""
        error.message = f"{self._address} cannot continue the request that {self._beginner} began: {error.message}"
        self._mismatch = error
        self._endpoints.computes(self._address, error.metadata["numerics"])
        self._different.add(self._address)
        self._tried.clear()
        if not self._alike:
            raise error
        return 0.0

    def _refused(self, error: AtCapacityError) -> float:
        """Returns the wait for a place. A running request never fails because verifiers are full.

        A new request fails once all reachable verifiers have refused it.
        """
        if self.key is None:  # with a key, the verifier in use stays: the caller manages its drafters
            self._endpoints.move_on(self._address)
        self._tried.add(self._address)
        self._failures = 0
        if self._full is None or (error.retry_after_seconds or 0.0) < (self._full.retry_after_seconds or 0.0):
            self._full = error
        if self._begun:
            if not self._tried.issuperset(self._alike):
                return 0.0
            self._tried.clear()
            shortest, self._full = self._full.retry_after_seconds, None
            return self._policy.max_backoff if shortest is None else shortest
        if self._endpoints.reachable(without=self._tried):
            return 0.0
        raise self._full

    @staticmethod
    def _until(deadline: float | None, wait: float) -> float:
        wait = min(wait * random.uniform(0.8, 1.2), threading.TIMEOUT_MAX)  # keeps clients from retrying in step
        return wait if deadline is None else min(wait, max(0.0, deadline - time.monotonic()))


def is_loss(error: DraftwireError) -> bool:
    """Returns whether an error means that a connection or stream was lost, or that the service is shutting down.

    A reset stream can have many codes; errors of the service itself differ from it in having a reason.
    """
    return isinstance(error, UnavailableError) or (error.reason is None and error.code in _BROKEN_CODES)


def says_that_it_serves(error: DraftwireError) -> bool:
    """Returns whether a service whose health check failed serves nevertheless: it answered, but refused the check."""
    return not (is_loss(error) or isinstance(error, DeadlineExceededError))


def deadline_after(timeout: float | None) -> Deadline | None:
    """Returns the time, by ``time.monotonic``, by which a call that begins now must end."""
    return None if timeout is None else Deadline.after(timeout)


def remaining(deadline: float | None) -> float | None:
    """Returns the seconds until a deadline, at most 1e9: gRPC takes an infinite time for none."""
    return None if deadline is None else min(max(0.0, deadline - time.monotonic()), 1e9)
