"""JSON descriptions of the pool and the verifier."""

from __future__ import annotations

from typing import Any

from draftwire import Drafter, Learning, Rollout, RolloutSide, VerifierInfo


def describe_drafter(drafter: Drafter) -> dict[str, Any]:
    """Returns a drafter as the page shows it."""
    return {
        "name": drafter.name,
        "address": drafter.address,
        "state": drafter.state,
        "model": drafter.model.model_id if drafter.model is not None else None,
        "sequences": drafter.sequences,
        "draft_tokens": drafter.draft_tokens,
        "accepted_tokens": drafter.accepted_tokens,
        "acceptance_rate": drafter.acceptance_rate,
        "response_seconds": drafter.response_seconds,
        "step_seconds": drafter.step_seconds,
        "last_error": str(drafter.last_error) if drafter.last_error is not None else None,
        "learning": _learning(drafter.learning) if drafter.learning is not None else None,
    }


def describe_rollout(rollout: Rollout) -> dict[str, Any]:
    """Returns a rollout as the page shows it."""
    return {
        "old": _side(rollout.old),
        "new": _side(rollout.new),
        "share": rollout.share,
        "state": rollout.state,
        "reason": rollout.reason,
        "started_at": rollout.started_at.isoformat() if rollout.started_at is not None else None,
    }


def describe_verifier(info: VerifierInfo) -> dict[str, Any]:
    """Returns the verifier as the page shows it. Its plain speed is estimated from c(1), one row per step."""
    costs = info.engine.planner.step_costs
    return {
        "model": info.model_id,
        "parameters": info.parameters,
        "dtype": info.dtype,
        "device": info.device,
        "chat": info.chat_format is not None,
        "running": info.engine.running_sequences,
        "waiting": info.engine.waiting_requests,
        "used_slots": info.engine.used_slots,
        "total_slots": info.engine.total_slots,
        "plain_tokens_per_second": 1 / costs[0].seconds if costs and costs[0].seconds > 0 else None,
    }


def _learning(learning: Learning) -> dict[str, Any]:
    return {
        "activity": learning.activity,
        "version": learning.version,
        "first_agreement": learning.first_agreement,
        "agreement": learning.agreement,
    }


def _side(side: RolloutSide) -> dict[str, Any]:
    rate = side.acceptance_rate if side.draft_tokens else None
    return {"name": side.name, "sequences": side.sequences, "acceptance_rate": rate}
