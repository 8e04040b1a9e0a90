"""Metrics of speculation."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from draftwire._types.speculation import RULE_NAMES
from draftwire_core.runtime.observability.metric_families import counter
from verifier_service.counting.acceptance_counts import AcceptanceCounts, RuleCount


def speculation_families(counts: AcceptanceCounts) -> Iterator[Metric]:
    """Yields the metrics of speculation by acceptance rule; a total would let lossy rules flatter the drafters."""
    by_rule = {name: RuleCount() for name in RULE_NAMES.values()}
    by_rule |= {RULE_NAMES[rule]: count for rule, count in counts.by_rule().items()}

    def told(name: str, help_text: str, field: str) -> Metric:
        return counter(name, help_text, {rule: getattr(count, field) for rule, count in by_rule.items()}, ["rule"])

    yield told("spec_decode_num_requests", "Requests that started.", "requests")
    yield told("spec_decode_num_drafts", "Verifications, per request and step, of at least one draft token.", "drafts")
    yield told("spec_decode_num_draft_tokens", "Draft tokens verified.", "draft_tokens")
    yield told("spec_decode_num_accepted_tokens", "Draft tokens accepted.", "accepted_tokens")
    yield counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens accepted, by position in their verification: 0 for the first, 1 for the second, and so on.",
        {
            (rule, str(position)): accepted
            for rule, count in by_rule.items()
            for position, accepted in enumerate(count.accepted_per_position())
        },
        ["rule", "position"],
    )
    yield told("spec_decode_num_generated_tokens", "Output tokens of requests, drafted or not.", "tokens")
