"""Metrics agree with the responses, and there are series for attached drafters only."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry

from draftwire._types.speculation import RULE_NAMES
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.learning_pb2 import LearningRound, LearningStatus
from draftwire.v1.speculation_pb2 import AcceptanceRule, SpeculationOptions
from draftwire_core.runtime.errors import ServiceError
from tests.harness.deploy.metrics_document import documented, served
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import PROMPT, TOKENS, InProcessVerifier, Output, order, sampled
from tests.harness.stand_ins.scripted_drafter import right
from tests.harness.verifier.running import Running
from verifier_service.metrics.collector import VerifierCollector

REASONS = {
    pb.FinishReason.FINISH_REASON_STOP: "stop",
    pb.FinishReason.FINISH_REASON_LENGTH: "length",
    pb.FinishReason.FINISH_REASON_DEADLINE: "deadline",
}


def learned() -> LearningStatus:
    last = LearningRound(version=2, accepted_per_step_before=1.0, accepted_per_step_after=1.5, speed_ratio=1.2)
    return LearningStatus(version=1, rounds=2, first_agreement=0.5, agreement=0.75, last_round=last)


class Metrics:
    """The values of a scrape."""

    def __init__(self, verifier: InProcessVerifier) -> None:
        self.collector = VerifierCollector(verifier.verifier)
        self._registry = CollectorRegistry()
        self._registry.register(self.collector)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"draftwire:{name}", labels)

    def all(self, name: str, label: str) -> dict[str, float]:
        """Returns a metric's values by one label, without zeros."""
        found: Counter[str] = Counter()
        for family in self.collector.collect():
            for sample in family.samples:
                if sample.name == f"draftwire:{name}":
                    found[sample.labels[label]] += sample.value  # type: ignore[assignment]
        return {value: count for value, count in found.items() if count}

    def series(self) -> int:
        return sum(len(family.samples) for family in self.collector.collect())


@pytest.fixture
def metrics(verifier: InProcessVerifier) -> Metrics:
    return Metrics(verifier)


def speculation(outputs: list[Output], rule: AcceptanceRule) -> dict[str, Any]:
    """Sums the statistics of a rule over responses."""
    found = [output.finished.speculation for output in outputs if output.finished.speculation.acceptance == rule]
    positions: Counter[str] = Counter()
    for each in found:
        for position, count in enumerate(each.accepted_per_position):
            positions[str(position)] += count
    return {
        "drafts": sum(each.drafts for each in found),
        "draft_tokens": sum(each.draft_tokens for each in found),
        "accepted_tokens": sum(each.accepted_tokens for each in found),
        "positions": {position: count for position, count in positions.items() if count},
    }


async def test_values_are_what_responses_say(
    verifier: InProcessVerifier, metrics: Metrics, twin: InProcessDrafter, stranger: InProcessDrafter
) -> None:
    await verifier.pool.membership.attach("twin:1", "good")
    await verifier.pool.membership.attach("stranger:1", "bad")
    whole = await verifier.generate(order(speculation=SpeculationOptions(enabled=False)))
    typical = AcceptanceRule.ACCEPTANCE_RULE_TYPICAL
    lossy = SpeculationOptions(acceptance=typical, drafter="bad")
    requests = [
        order(max_tokens=24, speculation=SpeculationOptions(drafter="good")),
        order(max_tokens=24, speculation=SpeculationOptions(drafter="bad")),
        order(max_tokens=24, sampling=sampled(), speculation=SpeculationOptions(drafters=2)),
        order(max_tokens=24, stop=[whole.text[5:8]], speculation=SpeculationOptions(drafter="good")),
        order(max_tokens=24, sampling=sampled(), speculation=lossy),
    ]
    outputs = [whole, *[await verifier.generate(request) for request in requests]]
    outputs += await asyncio.gather(*(verifier.generate(request) for request in requests))
    reasons = Counter(REASONS[output.finished.finish_reason] for output in outputs)
    assert set(reasons) == {"stop", "length"}, "both are covered"
    assert metrics.all("request_success_total", "finished_reason") == reasons
    for rule, name in RULE_NAMES.items():
        told = speculation(outputs, rule)
        assert metrics("spec_decode_num_drafts_total", rule=name) == told["drafts"]
        assert metrics("spec_decode_num_draft_tokens_total", rule=name) == told["draft_tokens"]
        assert metrics("spec_decode_num_accepted_tokens_total", rule=name) == told["accepted_tokens"]
        positions = {
            position: value
            for position in map(str, range(20))
            if (value := metrics("spec_decode_num_accepted_tokens_per_pos_total", rule=name, position=position))
        }
        assert positions == told["positions"]
    assert speculation(outputs, AcceptanceRule.ACCEPTANCE_RULE_COUPLED)["accepted_tokens"] > 40
    assert speculation(outputs, typical)["draft_tokens"] > 0
    usages = [output.finished.usage for output in outputs]
    tokens = sum(usage.completion_tokens for usage in usages)
    assert tokens == sum(len(output.token_ids) for output in outputs)
    assert metrics("generation_tokens_total") == metrics("goodput_tokens_total") == tokens
    assert metrics("prompt_tokens_total") == sum(usage.prompt_tokens for usage in usages)
    assert metrics("request_generation_tokens_sum") == tokens
    assert metrics("time_to_first_token_seconds_count") == len(outputs)
    assert metrics("e2e_request_latency_seconds_count") == len(outputs)
    # Measured to the end of the response, so slightly later than the usage in it.
    assert sum(usage.total_seconds for usage in usages) <= metrics("e2e_request_latency_seconds_sum")  # type: ignore[operator]
    steps = sum(output.finished.speculation.steps for output in outputs)
    assert metrics("inter_token_latency_seconds_count") == steps - len(outputs)
    assert metrics("step_sequences_sum") == steps
    assert sum(metrics.all("drafter_draft_tokens_total", "drafter").values()) == sum(
        output.finished.speculation.draft_tokens for output in outputs
    )
    assert metrics("drafter_draft_tokens_total", drafter="bad", lossless="false")
    assert not metrics("drafter_draft_tokens_total", drafter="good", lossless="false")
    status = verifier.verifier.status()
    assert metrics("kv_cache_slots") == status.total_slots
    assert metrics("step_rows_count") == status.times.steps
    assert metrics("ruled_out_kernel_shapes") == 0


async def test_a_scrape_changes_nothing(verifier: InProcessVerifier, metrics: Metrics, twin: InProcessDrafter) -> None:
    await verifier.pool.membership.attach("twin:1", "good")
    await verifier.generate(order())
    first, second = metrics.series(), metrics.series()
    assert first == second
    assert metrics("generation_tokens_total") == metrics("generation_tokens_total") == TOKENS


async def test_how_requests_end(verifier: InProcessVerifier, metrics: Metrics) -> None:
    verifier.engine.hold(1)
    async with verifier.running(order(max_tokens=20)) as running:
        await verifier.until(lambda: len(running.tokens) > len(PROMPT))
    assert metrics.all("request_success_total", "finished_reason") == {"abort": 1}
    verifier.engine.hold(1)
    limited = asyncio.create_task(verifier.generate(order(max_time=Duration(nanos=200_000_000))))
    await verifier.until(limited.done)
    verifier.engine.go_on()
    assert metrics.all("request_success_total", "finished_reason") == {"abort": 1, "deadline": 1}
    assert metrics("goodput_tokens_total") == 0
    assert metrics("generation_tokens_total") > 0  # type: ignore[operator]
    verifier.engine.hold(0)
    task = asyncio.create_task(verifier.generate(order()))
    await verifier.until(lambda: verifier.engine.held)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(verifier.verifier.drain(0), 0.1)
    with pytest.raises(ServiceError):
        await task
    assert metrics("request_success_total", finished_reason="shutdown") == 1


async def test_refusals_are_counted_by_reason(verifier: InProcessVerifier, metrics: Metrics) -> None:
    with pytest.raises(ServiceError):
        await verifier.verifier.read(order(max_tokens=20, stop=[""]))
    with pytest.raises(ServiceError):
        await verifier.generate(order(speculation=SpeculationOptions(drafter="nobody")))
    verifier.engine.hold(0)
    waiting = [asyncio.create_task(verifier.generate(order(max_tokens=2))) for _ in range(20)]
    await verifier.until(lambda: len(verifier.verifier._requests) == 20)
    for _ in range(2):
        with pytest.raises(ServiceError):
            await verifier.generate(order())
    verifier.engine.go_on()
    await asyncio.gather(*waiting)
    told = metrics.all("requests_refused_total", "reason")
    assert told == {"INVALID_FIELD": 1, "DRAFTER_NOT_FOUND": 1, "AT_CAPACITY": 2}
    assert metrics("request_success_total", finished_reason="length") == 20


async def test_a_drafters_series_end_with_it(
    verifier: InProcessVerifier, metrics: Metrics, listening: Any, twin: InProcessDrafter
) -> None:
    for number in range(3):
        await verifier.pool.membership.attach("twin:1", f"drafter-{number}")
    await verifier.generate(order())
    for number in range(3):
        await verifier.pool.changes.detach(f"drafter-{number}")
    await verifier.until(lambda: not verifier.engine.planner.models)
    before = metrics.series()
    counted = metrics("spec_decode_num_draft_tokens_total", rule="coupled")
    for number in range(30):
        await verifier.pool.membership.attach("twin:1", f"another-{number}")
        verifier.pool.roster.named(f"another-{number}").show_learning(learned())
        assert metrics.all("drafter_up", "drafter") == {f"another-{number}": 1}
        assert metrics.all("learner_agreement", "when") == {"first": 0.5, "now": 0.75}
        assert metrics.all("learner_trial_accepted_tokens_per_step", "version") == {"before": 1.0, "after": 1.5}
        await verifier.pool.changes.detach(f"another-{number}")
    await verifier.until(lambda: not verifier.engine.planner.models)
    assert metrics.series() == before
    assert metrics.all("drafters", "state") == {}
    assert metrics("spec_decode_num_draft_tokens_total", rule="coupled") == counted
    assert counted


async def test_fall_backs_and_swaps_outlive_their_drafters(
    verifier: InProcessVerifier, metrics: Metrics, listening: Any
) -> None:
    drafter = listening("a:1")
    await verifier.pool.membership.attach("a:1", "first")
    async with Running(verifier):
        await verifier.until(lambda: drafter.open)
        other = listening("b:1")
        await verifier.pool.changes.swap("first", "b:1")
        await verifier.until(lambda: other.open)
        assert metrics("drafter_swaps_total", result="done") == 1
        assert metrics("drafter_moved_sequences_total") == 1
        assert metrics.all("drafter_fallbacks_total", "reason") == {}
        with pytest.raises(ServiceError):
            await verifier.pool.changes.swap("b:1", "nowhere:1")
        await verifier.network.kill("b:1")
        await verifier.until(lambda: metrics("drafter_fallbacks_total", reason="lost") == 1)
        third = listening("c:1")
        await verifier.pool.membership.attach("c:1", "")
        await verifier.until(lambda: third.open)
        await verifier.pool.changes.detach("c:1")
        assert metrics.all("drafter_fallbacks_total", "reason") == {"lost": 1, "released": 1}
        await verifier.pool.changes.detach("b:1")
    assert metrics.all("drafter_fallbacks_total", "reason") == {"lost": 1, "released": 1}
    assert metrics("drafter_swaps_total", result="done") == 1


async def test_drafts_that_are_right_count_as_faster(
    verifier: InProcessVerifier, metrics: Metrics, listening: Any
) -> None:
    """Every step is assumed to cost 50 ms, so each accepted token saves 50 ms."""
    plain = await verifier.plain(order())
    before = metrics("plain_decode_seconds_total")
    assert before == pytest.approx(metrics("step_seconds_sum"))
    listening("a:1", right([*PROMPT, *plain.token_ids]))
    await verifier.pool.membership.attach("a:1", "")
    verifier.engine.drafts_awaited = True
    output = await verifier.generate(order())
    accepted = output.finished.speculation.accepted_tokens
    assert accepted > 10
    saved = metrics("plain_decode_seconds_total") - metrics("step_seconds_sum")  # type: ignore[operator]
    assert saved == pytest.approx(0.05 * accepted)


async def test_every_metric_is_documented(
    verifier: InProcessVerifier, metrics: Metrics, twin: InProcessDrafter
) -> None:
    await verifier.pool.membership.attach("twin:1", "good")
    verifier.pool.roster.named("good").show_learning(learned())
    await verifier.generate(order())
    # A ping is sent when the connection begins; its answer may not have arrived yet.
    await verifier.until(lambda: metrics("drafter_round_trip_seconds", drafter="good"))
    assert served(metrics.collector.collect()) == documented("Verifier")
