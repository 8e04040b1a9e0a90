"""Whether a call is tried again, and when.

A call that finds its verifier unreachable moves on to another; so does a stream that breaks, which the next verifier
goes on with from the tokens it has. Only lost connections and verifiers that shut down are tried again, and full
verifiers for a request that has begun; one that is new goes to each of the others, where there are some. Every other
error is an answer. A request that has lost two verifiers which had it, and got nothing from them, may be what ended
them: it fails instead of going to a third.
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
"""What gRPC calls a connection or stream that broke, depending on how it broke."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a client deals with verifiers that cannot be reached."""

    attempts_per_address: int = 4
    """Attempts at each address, in turn, before the error is raised. A stream that got tokens counts afresh."""
    initial_backoff: float = 0.1
    """Seconds to wait after each address has failed once; doubled every time."""
    max_backoff: float = 2.0
    """Longest wait between two attempts, in seconds."""
    fruitless_losses: int = 2
    """Losses of verifiers which had a request and sent no token of it, the same one or others, before it fails: it may
    be what ended them. Counted afresh after each token. A verifier that was not reached or that shuts down does not
    count."""
    on_other_numerics: Literal["fail", "restart"] = "fail"
    """Whether a request that broke off fails, with ``NumericsMismatchError``, where only verifiers of other numerics
    are left, or is begun anew there: the same prompt and seed, all of the text generated again. That is for the methods
    that return whole results; a stream has handed out what it would have to take back, and fails in either case."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: no attempt, no loss, a negative wait, or another word than fail and restart.
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
    """The attempts of one call: where the next goes, and when. Safe to use from several threads."""

    def __init__(
        self,
        endpoints: Endpoints,
        policy: RetryPolicy,
        *,
        key: bytes | None = None,
        repeatable: bool = True,
        stays: bool = False,
    ) -> None:
        """Start with no attempt made.

        Args:
            endpoints: where it may go.
            policy: how often, and when.
            key: what decides where it goes, see ``spreading``; None goes to the verifier in use. A call with a key
                counts as load where it is until ``end``.
            repeatable: False allows one attempt, and another only where the service refused it.
            stays: True repeats it where it was made first: it changes something there.
        """
        self._endpoints = endpoints
        self._policy = policy
        self._key = key
        self._repeatable = repeatable
        self._stays = stays
        self._address = endpoints.current
        self._taken: str | None = None
        self._failures = 0
        self._tried: set[str] = set()
        self._begun = False
        self._fruitless: list[str] = []
        """Addresses of the attempts since the last token that were lost before they got one."""
        self._got_token = False
        """Whether this attempt has got one."""
        self._full: AtCapacityError | None = None
        self._numerics: str | None = None
        self._beginner = ""
        self._different: set[str] = set()
        """Verifiers that cannot go on with what another has begun."""
        self._mismatch: NumericsMismatchError | None = None
        self.lost_by: DraftwireError | None = None
        """The error of the last lost attempt since the last progress."""
        self._lock = threading.Lock()

    def next_address(self) -> str:
        """Return the address for the next attempt.

        Raises:
            NumericsMismatchError: those that might have gone on with the request are gone from behind their name.
        """
        if self._mismatch is not None and not self._alike:
            raise self._mismatch
        self._got_token = False
        if self._key is not None or self._different:
            numerics = self._numerics if self._begun else None
            address = self._endpoints.take(self._key or b"", self._tried, self._different, numerics)
            with self._lock:
                self._address = self._taken = address
        elif not (self._stays and self._failures):
            self._address = self._endpoints.current
        return self._address

    def read(self, response: object) -> None:
        """Take in what a response tells of the verifier that sent it.

        Raises:
            ModelMismatchError: another verifier has another target.
        """
        if isinstance(response, pb.GenerateResponse) and response.HasField("started"):
            started = response.started
            if not self._begun:
                self._numerics, self._beginner = started.numerics, self._address
            if self._key is not None:
                requests = started.requests if started.HasField("requests") else None
                self._endpoints.told(self._address, started.model_fingerprint, requests, started.numerics)

    def succeeded(self) -> None:
        """Take note of progress: failures are counted afresh from here."""
        if self._failures or not self._begun:
            self._endpoints.serves(self._address)
        self._failures = 0
        self._tried.clear()
        self._full = None
        self.lost_by = None
        self._begun = self._got_token = True
        self._fruitless.clear()

    def failed(self, error: DraftwireError, deadline: float | None = None, *, taken: bool = False) -> float:
        """Return the seconds to wait before the next attempt, which is not later than the deadline.

        Args:
            error: what the attempt ended with.
            deadline: of the call, by ``time.monotonic``.
            taken: whether the verifier had the request, see ``receipt``.

        Raises:
            UnavailableError: too many verifiers that had it were lost.
            DraftwireError: the error itself, when there is to be no other attempt.
        """
        self.end()
        if isinstance(error, NumericsMismatchError):
            return self._differs(error)
        if isinstance(error, AtCapacityError) and (self._begun or self._key is not None):
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
                    f"the verifiers at {lost} were lost while they had this request, before "
                    f"they sent a token; it may be what ended them, and is not sent again: {error.message}",
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
        wait = min(self._policy.max_backoff, self._policy.initial_backoff * 2.0 ** (rounds - 1))
        return self._until(deadline, wait)

    @property
    def replaceable(self) -> bool:
        """Whether another verifier may go on with the request, should this one be lost."""
        return self._endpoints.replaceable(self._address)

    def begin_anew(self) -> None:
        """Forget what was begun: the next attempt is that of a new request."""
        self._failures = 0
        self._tried.clear()
        self._different.clear()
        self._full = self._mismatch = None
        self._begun = False

    def end(self) -> None:
        """Let the call count as load no more. Doing it again does nothing."""
        with self._lock:
            taken, self._taken = self._taken, None
        if taken is not None:
            self._endpoints.release(taken)

    @property
    def _alike(self) -> tuple[str, ...]:
        """The addresses that are not known to be unable to go on with the request."""
        return tuple(each for each in self._endpoints.addresses if each not in self._different)

    def _differs(self, error: NumericsMismatchError) -> float:
        """Go on to verifiers that may have the numerics of the one that began: it may itself come back."""
        error.message = f"{self._address} cannot go on with what {self._beginner} has begun: {error.message}"
        self._mismatch = error
        self._endpoints.computes(self._address, error.metadata["numerics"])
        self._different.add(self._address)
        self._tried.clear()
        if not self._alike:
            raise error
        return 0.0

    def _refused(self, error: AtCapacityError) -> float:
        """Return the wait for a place, for a request that has begun: it does not end because verifiers are full.

        A new one is told so by those that can be reached.
        """
        self._endpoints.move_on(self._address)
        self._tried.add(self._address)
        self._failures = 0
        if self._full is None or (error.retry_after_seconds or 0.0) < (self._full.retry_after_seconds or 0.0):
            self._full = error
        if self._begun:
            if not self._tried.issuperset(self._alike):
                return 0.0
            self._tried.clear()
            return self._policy.max_backoff if error.retry_after_seconds is None else error.retry_after_seconds
        if self._endpoints.reachable(without=self._tried):
            return 0.0
        raise self._full

    @staticmethod
    def _until(deadline: float | None, wait: float) -> float:
        wait *= random.uniform(0.8, 1.2)  # not all clients at once
        return wait if deadline is None else min(wait, max(0.0, deadline - time.monotonic()))


def is_loss(error: DraftwireError) -> bool:
    """Return whether an error says that a connection or a stream broke, or that the service is going away.

    A stream that is reset has many codes; what tells them from the service's answers is that those have a reason.
    """
    if isinstance(error, UnavailableError):
        return True
    return error.reason is None and error.code in _BROKEN_CODES


def says_that_it_serves(error: DraftwireError) -> bool:
    """Return whether a service that fails to tell its health serves: it answers, and knows or allows no such call."""
    return not (is_loss(error) or isinstance(error, DeadlineExceededError))


def deadline_after(timeout: float | None) -> Deadline | None:
    """Return the time, by ``time.monotonic``, at which a call that begins now has to end."""
    return None if timeout is None else Deadline.after(timeout)


def remaining(deadline: float | None) -> float | None:
    """Return the seconds until a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
