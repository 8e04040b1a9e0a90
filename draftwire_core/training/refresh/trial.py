"""Trial of a new checkpoint: a rollout gives it a share of the traffic, and all of it if its acceptance is better."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from draftwire import Client, ServedRequest
from draftwire.errors import (
    DeadlineExceededError,
    DrafterUnreachableError,
    FailedPreconditionError,
    RolloutNotFoundError,
    UnsupportedDrafterError,
)
from draftwire_core.training.refresh.traffic_follower import TrafficFollower

_POLL_SECONDS = 0.5
_LOAD_SECONDS = 300.0
_CANNOT_DRAFT = (DrafterUnreachableError, FailedPreconditionError, UnsupportedDrafterError)
"""Errors of a drafter that cannot be attached."""

Ask = Callable[[str, str], None]
"""Sends requests of its own to both drafters, given by name, so that a trial without traffic is decided."""


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Options of the trial of a new checkpoint."""

    share: float = 0.5
    """Share of the requests that the new checkpoint drafts for."""
    requests: int = 16
    """Finished requests of each of the two drafters needed for a decision."""
    seconds: float = 600.0
    """Time limit, after which an undecided trial is withdrawn."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a trial."""

    promoted: bool
    drafter: str
    """Name of the drafter that has the traffic now."""
    reason: str
    accepted_per_step: tuple[float, float] | None = None
    """Accepted draft tokens per step of the old drafter and of the new one; None if the trial was not decided."""


@dataclass
class Tally:
    """Accepted draft tokens per step of one of the two drafters, by request."""

    name: str
    accepted_per_step: list[float] = field(default_factory=list)

    def take(self, request: ServedRequest, other: str) -> None:
        """Counts a request, if this one of the two drafted for it; drafters of other kinds draft with both alike."""
        if self.name in request.drafters and other not in request.drafters and request.speculation.steps:
            self.accepted_per_step.append(request.speculation.accepted_tokens / request.speculation.steps)

    @property
    def mean(self) -> float:
        """Returns the mean over the requests so far."""
        return statistics.fmean(self.accepted_per_step)


def try_out(
    client: Client,
    follower: TrafficFollower,
    old: str,
    canary: str,
    checkpoint: Path | None,
    options: TrialOptions,
    seen: Callable[[list[ServedRequest]], None],
    ask: Ask | None = None,
) -> Verdict:
    """Loads a checkpoint into the canary, gives it its share of the requests of `old`, and promotes or withdraws it.

    canary: address of an idle drafter service that sees `checkpoint` under the same path; or of a drafter in the
    verifier that names the checkpoint itself, with None for `checkpoint`. `seen` is called with the requests that
    finish meanwhile. ask: is called while none finishes; None only waits. Raises DraftwireError, after which the
    rollout is withdrawn.
    """
    fault = None if checkpoint is None else _load(client, canary, checkpoint)
    if fault is not None:
        return Verdict(False, old, fault)
    try:
        new = client.drafters.rollout(old, canary, options.share, timeout=_LOAD_SECONDS).new.name
    except _CANNOT_DRAFT as error:
        if checkpoint is not None:
            raise  # a service that serves the checkpoint is refused for another reason
        return Verdict(False, old, f"it cannot draft: {error}")
    try:
        seen(follower.take(0.0))  # requests that finished before do not count for the new one
        verdict = _watch(client, follower, old, new, options, seen, ask)
        if verdict.promoted:
            client.drafters.promote(new)
    except RolloutNotFoundError:  # withdrawn between our looking and our deciding
        return Verdict(False, old, _ending(client, new) or "the rollout ended")
    except BaseException:
        _withdraw(client, new)
        raise
    if not verdict.promoted:
        _withdraw(client, new)
    return verdict


def _load(client: Client, canary: str, checkpoint: Path) -> str | None:
    """Loads a checkpoint into the canary; returns the reason if that fails."""
    try:
        load = client.drafters.load_model(canary, str(checkpoint.resolve()), wait=True, timeout=_LOAD_SECONDS)
    except DeadlineExceededError:
        return f"{canary} did not load it within {_LOAD_SECONDS:g} s"
    return None if load.state == "serving" else f"{canary} cannot serve it: {load.error}"


def _watch(
    client: Client,
    follower: TrafficFollower,
    old: str,
    new: str,
    options: TrialOptions,
    seen: Callable[[list[ServedRequest]], None],
    ask: Ask | None,
) -> Verdict:
    sides = Tally(old), Tally(new)
    deadline = time.monotonic() + options.seconds
    while min(len(side.accepted_per_step) for side in sides) < options.requests:
        if time.monotonic() > deadline:
            counts = " and ".join(str(len(side.accepted_per_step)) for side in sides)
            return Verdict(False, old, f"undecided after {options.seconds:g} s: {counts} requests of old and new")
        ended = _ending(client, new)
        if ended is not None:
            return Verdict(False, old, ended)
        requests = follower.take(_POLL_SECONDS)
        seen(requests)
        for request in requests:
            for side, other in ((sides[0], new), (sides[1], old)):
                side.take(request, other)
        if not requests and ask is not None:
            ask(old, new)
    before, after = (side.mean for side in sides)
    reason = (
        f"{after:.3f} accepted tokens per step against {before:.3f} "
        f"({len(sides[1].accepted_per_step)} and {len(sides[0].accepted_per_step)} requests)"
    )
    return Verdict(after > before, new if after > before else old, reason, (before, after))


def _ending(client: Client, new: str) -> str | None:
    """Returns the reason why the latest rollout of a drafter ended; None while it runs."""
    latest = next((each for each in client.drafters.rollouts() if each.new.name == new), None)
    if latest is None:
        return "the verifier has restarted"
    if latest.state == "running":
        return None
    return f"{latest.state} by the verifier: {latest.reason}"


def _withdraw(client: Client, new: str) -> None:
    with suppress(RolloutNotFoundError):  # it has ended by itself
        client.drafters.withdraw(new)
