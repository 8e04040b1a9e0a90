"""Results as JSON values."""

from __future__ import annotations

from typing import Any

from draftwire.drafters import Drafter
from draftwire.generation import Generation
from draftwire.speculation import DrafterShare


def generation_json(result: Generation) -> dict[str, Any]:
    """Return a result as a JSON value."""
    usage, speculation = result.usage, result.speculation
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "seed": result.seed,
        "request_id": result.request_id,
        "resumes": result.resumes,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "first_token_seconds": usage.first_token_seconds,
            "total_seconds": usage.total_seconds,
        },
        "speculation": {
            "steps": speculation.steps,
            "draft_tokens": speculation.draft_tokens,
            "accepted_tokens": speculation.accepted_tokens,
            "acceptance_rate": speculation.acceptance_rate,
            "acceptance_length": speculation.acceptance_length,
            "stale_nodes": speculation.stale_nodes,
            "drafters": [share_json(share) for share in speculation.drafters],
        },
    }


def share_json(share: DrafterShare) -> dict[str, Any]:
    """Return a drafter's share in a request as a JSON value."""
    return {
        "name": share.name,
        "draft_tokens": share.draft_tokens,
        "accepted_tokens": share.accepted_tokens,
        "acceptance_rate": share.acceptance_rate,
    }


def drafter_json(drafter: Drafter) -> dict[str, Any]:
    """Return a drafter as a JSON value."""
    return {
        "name": drafter.name,
        "address": drafter.address,
        "state": drafter.state,
        "model": drafter.model.model_id if drafter.model else None,
        "sequences": drafter.sequences,
        "draft_tokens": drafter.draft_tokens,
        "accepted_tokens": drafter.accepted_tokens,
        "acceptance_rate": drafter.acceptance_rate,
        "stale_nodes": drafter.stale_nodes,
        "step_seconds": drafter.step_seconds,
        "response_seconds": drafter.response_seconds,
        "attached_at": drafter.attached_at.isoformat() if drafter.attached_at else None,
        "announced": drafter.announced,
        "last_error": str(drafter.last_error) if drafter.last_error else None,
    }
