"""Trial of a new checkpoint: a rollout gives it a share of the traffic, and all of it if it is faster.

The speeds are estimated by the verifier's costs: accepted and verified draft tokens of each request, c(n), and the time
that each of the two drafters takes in the engine's thread. Requests that run at the same time share their steps, so
that their own times do not compare two drafters, and times of requests change with all that the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from draftwire import Client, PlannerStatus, Rollout, ServedRequest
from draftwire.errors import (
    BusyError,
    DeadlineExceededError,
    DrafterUnreachableError,
    FailedPreconditionError,
    RolloutNotFoundError,
    UnsupportedDrafterError,
)
from draftwire_core.training.refresh.speed_comparison import SideRequests, SpeedComparison, StepPrices
from draftwire_core.training.refresh.traffic_follower import TrafficFollower

_POLL_SECONDS = 0.5
_LOAD_SECONDS = 300.0
_MOST = 4
"""Times as many requests as are needed, after which a trial is decided."""
_CLEAR, _LIKELY = 2.0, 1.0
"""Standard errors by which the speeds must differ to decide early, and in the end."""
_CANNOT_DRAFT = (DrafterUnreachableError, FailedPreconditionError, UnsupportedDrafterError)
"""Errors of a drafter that cannot be attached."""

RESTARTED = "the verifier has restarted"
"""Reason of a verdict on a trial that the verifier does not know: it decides nothing."""
Ask = Callable[[str, str], None]
"""Sends requests of its own to both drafters, given by name, so that a trial without traffic is decided."""


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Options of the trial of a new checkpoint."""

    share: float = 0.5
    """Share of the requests that the new checkpoint drafts for."""
    requests: int = 16
    """Finished requests of each of the two drafters needed for a decision; it gets up to four times as many if the
    difference is not clear."""
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
    speed_ratio: float | None = None
    """Estimated speed with the new drafter over that with the old one; None if the trial was not decided."""


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
        if checkpoint is not None or isinstance(error, BusyError):
            raise  # a service that serves the checkpoint, or a busy drafter, is refused for another reason
        return Verdict(False, old, f"it cannot draft: {error}")
    try:
        seen(follower.take(0.0))  # requests that finished before do not count for the new one
        verdict = _watch(client, follower, old, new, options, seen, ask)
        if verdict.promoted:
            client.drafters.promote(new)
    except RolloutNotFoundError:  # withdrawn between our looking and our deciding
        return Verdict(False, old, _ending(_rollout(client, new)) or "the rollout ended")
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
    sides = SideRequests(old), SideRequests(new)
    deadline = time.monotonic() + options.seconds
    begun = client.model_info().engine.planner
    while True:
        late = time.monotonic() > deadline
        rollout = _rollout(client, new)
        ended = _ending(rollout)
        if ended is not None:
            return Verdict(False, old, ended)
        assert rollout is not None
        fewest = min(len(side) for side in sides)
        if fewest >= options.requests:
            verdict = _compared(client, rollout, sides, begun, late=late or fewest >= _MOST * options.requests)
            if verdict is not None:
                return verdict
        if late:
            counts = " and ".join(str(len(side)) for side in sides)
            return Verdict(False, old, f"undecided after {options.seconds:g} s: {counts} requests of old and new")
        requests = follower.take(_POLL_SECONDS)
        seen(requests)
        for request in requests:
            for side, other in ((sides[0], new), (sides[1], old)):
                side.take(request, other)
        if not requests and ask is not None:
            ask(old, new)


def _compared(
    client: Client, rollout: Rollout, sides: tuple[SideRequests, SideRequests], begun: PlannerStatus, *, late: bool
) -> Verdict | None:
    """Compares the speeds by the verifier's costs; returns None if the difference is not clear, unless it is late."""
    planner = client.model_info().engine.planner
    steps = planner.steps - begun.steps
    prices = StepPrices(planner.step_costs, max(1.0, (planner.sequences - begun.sequences) / steps) if steps else 1.0)
    old, new = sides
    drafting = rollout.old.drafting_per_step, rollout.new.drafting_per_step
    compared = SpeedComparison.of(*(side.speeds(prices, each) for side, each in zip(sides, drafting, strict=True)))
    errors = _LIKELY if late else _CLEAR
    if not late and not compared.faster(errors) and not compared.slower(errors):
        return None
    promoted = compared.faster(errors)
    reason = (
        f"{compared.ratio:.3f} times as fast by cost (standard error {compared.error:.3f}), "
        f"{new.accepted:.3f} accepted tokens per step against {old.accepted:.3f}, "
        f"{1000 * drafting[1]:.2f} ms of drafting against {1000 * drafting[0]:.2f} "
        f"({len(new)} and {len(old)} requests)"
    )
    taken = new.name if promoted else old.name
    return Verdict(promoted, taken, reason, (old.accepted, new.accepted), compared.ratio)


def _rollout(client: Client, new: str) -> Rollout | None:
    """Returns the latest rollout of a drafter; None if the verifier knows none."""
    return next((each for each in client.drafters.rollouts() if each.new.name == new), None)


def _ending(rollout: Rollout | None) -> str | None:
    """Returns the reason why a rollout ended; None while it runs."""
    if rollout is None:
        return RESTARTED
    if rollout.state == "running":
        return None
    return f"{rollout.state} by the verifier: {rollout.reason}"


def _withdraw(client: Client, new: str) -> None:
    with suppress(RolloutNotFoundError):  # it has ended by itself
        client.drafters.withdraw(new)
