"""Metrics of the drafter pool and of each attached drafter.

A drafter's series end when it leaves, so there are never more than `--max-drafters` of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from draftwire.v1.calibration_pb2 import Calibration
from draftwire.v1.drafter_pool_service_pb2 import Drafter, DrafterState
from draftwire.v1.learning_pb2 import LearningStatus
from draftwire_core.pool.drafter_pool import DrafterPool
from draftwire_core.pool.routing.drafting import Fallback
from draftwire_core.runtime.duration import seconds_of
from draftwire_core.runtime.observability.metric_families import counter, gauge

_STATES = {number: name.removeprefix("DRAFTER_STATE_").lower() for name, number in DrafterState.items() if number}


def drafter_families(pool: DrafterPool, calibrations: Sequence[Calibration]) -> Iterator[Metric]:
    """Yields the metric families of the pool and its drafters."""
    drafters = pool.describe()
    yield from _pool_families(pool, drafters)
    yield from _work_families(drafters)
    yield from _time_families(pool, drafters, calibrations)
    yield from _learning_families({each.name: each.learning for each in drafters if each.HasField("learning")})
    yield gauge(
        "drafter_calibrated_acceptance",
        "Chance that a node is right if its parent is, by its rank among its siblings (the last rank covers all "
        "further ones) and by the lower bound of the drafter's own probability.",
        {
            (each.drafter, str(one.rank), f"{one.above:g}"): one.acceptance
            for each in calibrations
            for one in each.classes
        },
        ["drafter", "rank", "above"],
    )
    yield gauge(
        "drafter_first_acceptance",
        "Chance that the drafter's next best node, not yet drafted, is right if its parent is.",
        {each.drafter: each.first_acceptance for each in calibrations},
        ["drafter"],
    )


def _pool_families(pool: DrafterPool, drafters: list[Drafter]) -> Iterator[Metric]:
    states = Counter(int(each.state) for each in drafters)
    counts = pool.drafting.counts
    yield gauge("drafters", "Drafters by state.", {name: states[number] for number, name in _STATES.items()}, ["state"])
    yield counter(
        "drafter_swaps",
        "Swaps of drafters, including promotions of rollouts.",
        {"done": counts.swaps, "failed": counts.failed_swaps},
        ["result"],
    )
    yield counter("drafter_moved_sequences", "Requests moved to another drafter by a swap.", counts.moved_sequences)
    yield counter(
        "drafter_fallbacks",
        "Times that a request lost its last drafter and continued without speculation, by reason.",
        {why.value: counts.fallbacks[why] for why in Fallback},
        ["reason"],
    )


def _work_families(drafters: list[Drafter]) -> Iterator[Metric]:
    def told(value: Callable[[Drafter], float]) -> dict[str, float]:
        return {each.name: value(each) for each in drafters}

    ready = DrafterState.DRAFTER_STATE_READY
    yield gauge("drafter_up", "Whether the drafter is ready.", told(lambda each: each.state == ready), ["drafter"])
    resting = "Whether a drafter service is paused because its tokens do not pay for its messages."
    yield gauge("drafter_resting", resting, told(lambda each: each.resting), ["drafter"])
    yield gauge("drafter_sequences", "Requests open with the drafter.", told(lambda each: each.sequences), ["drafter"])
    yield counter(
        "drafter_draft_tokens",
        "Verified draft tokens of the drafter, by whether the request's acceptance rule is lossless.",
        {(each.name, "true"): each.draft_tokens for each in drafters}
        | {(each.name, "false"): each.lossy_draft_tokens for each in drafters},
        ["drafter", "lossless"],
    )
    yield counter(
        "drafter_accepted_tokens",
        "Accepted draft tokens of the drafter, by whether the request's acceptance rule is lossless.",
        {(each.name, "true"): each.accepted_tokens for each in drafters}
        | {(each.name, "false"): each.lossy_accepted_tokens for each in drafters},
        ["drafter", "lossless"],
    )
    yield counter(
        "drafter_stale_nodes",
        "Nodes of the drafter that arrived too late to be used.",
        told(lambda each: each.stale_nodes),
        ["drafter"],
    )
    yield gauge(
        "drafter_accepted_tokens_per_second",
        "Recent accepted draft tokens per second of the drafter's time; the pool chooses drafters by it.",
        told(lambda each: each.accepted_per_second),
        ["drafter"],
    )
    yield gauge(
        "drafter_step_seconds",
        "Smoothed time of the drafter's steps; 0 before the first one.",
        told(lambda each: seconds_of(each.step_time)),
        ["drafter"],
    )


def _time_families(pool: DrafterPool, drafters: list[Drafter], calibrations: Sequence[Calibration]) -> Iterator[Metric]:
    measured = {drafter.name: drafter.stats for drafter in pool.roster.members}
    services = {name: stats for name, stats in measured.items() if stats.proposed_nodes}
    yield counter(
        "drafter_proposed_nodes",
        "Nodes received from a drafter service, including stale ones.",
        {name: stats.proposed_nodes for name, stats in services.items()},
        ["drafter"],
    )
    yield gauge(
        "drafter_round_trip_seconds",
        "Smoothed time from a ping to its answer, which a drafter service sends between two of its steps.",
        {name: stats.round_trip_seconds for name, stats in measured.items() if stats.round_trip_seconds},
        ["drafter"],
    )
    yield gauge(
        "drafter_response_seconds",
        "Smoothed time from a verdict that left nothing drafted to the first proposal that builds on it.",
        {each.name: seconds_of(each.response_time) for each in drafters if each.HasField("response_time")},
        ["drafter"],
    )
    yield gauge(
        "drafter_proposal_interval_seconds",
        "Smoothed time from one proposal for a request to the next.",
        {
            each.drafter: seconds_of(each.proposal_interval)
            for each in calibrations
            if each.HasField("proposal_interval")
        },
        ["drafter"],
    )


def _learning_families(learners: Mapping[str, LearningStatus]) -> Iterator[Metric]:
    """Yields the reports of learners, by drafter. A version may be a drafter of its own, and then its series end when
    the next one takes over; so none of them is a counter."""
    rounds = {name: each.last_round for name, each in learners.items() if each.HasField("last_round")}
    tried = {name: each for name, each in rounds.items() if each.HasField("accepted_per_step_after")}
    yield gauge(
        "learner_version",
        "Number of the learned version that drafts; 0 for the draft model as it was at first.",
        {name: each.version for name, each in learners.items()},
        ["drafter"],
    )
    yield gauge(
        "learner_rounds",
        "Rounds of training that have ended.",
        {name: each.rounds for name, each in learners.items()},
        ["drafter"],
    )
    yield gauge(
        "learner_collected_tokens",
        "Output tokens that the learner has collected.",
        {name: each.collected_tokens for name, each in learners.items()},
        ["drafter"],
    )
    yield gauge(
        "learner_agreement",
        "Share of held-out tokens that the draft model found likeliest: `first` before it learned, `now` when the "
        "version that drafts was measured last.",
        {(name, "first"): each.first_agreement for name, each in learners.items() if each.HasField("first_agreement")}
        | {(name, "now"): each.agreement for name, each in learners.items() if each.HasField("agreement")},
        ["drafter", "when"],
    )
    yield gauge(
        "learner_trial_accepted_tokens_per_step",
        "Accepted draft tokens per step in the last round's trial: `before` of the version that drafted, `after` of "
        "the new one.",
        {(name, "before"): each.accepted_per_step_before for name, each in tried.items()}
        | {(name, "after"): each.accepted_per_step_after for name, each in tried.items()},
        ["drafter", "version"],
    )
    yield gauge(
        "learner_trial_speed_ratio",
        "Estimated speed in the last round's trial: with the new version over that with the version that drafted.",
        {name: each.speed_ratio for name, each in rounds.items() if each.HasField("speed_ratio")},
        ["drafter"],
    )
    yield gauge(
        "learner_promoted",
        "Whether the version of the last round took over.",
        {name: each.promoted for name, each in rounds.items()},
        ["drafter"],
    )
    yield gauge(
        "learner_report_timestamp_seconds",
        "Time of the learner's last report, in seconds since 1970.",
        {name: each.reported_at.ToNanoseconds() / 1e9 for name, each in learners.items()},
        ["drafter"],
    )
