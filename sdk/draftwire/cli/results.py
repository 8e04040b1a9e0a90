"""Results as JSON values."""

from __future__ import annotations

from typing import Any

from draftwire._types.drafter import Drafter
from draftwire._types.drafter_service import ModelLoad
from draftwire._types.generation import Generation
from draftwire._types.logprobs import PromptReport, TokenLogProb, TokenLogProbs
from draftwire._types.rollout import Rollout, RolloutSide
from draftwire._types.speculation import DrafterShare


def generation_json(result: Generation) -> dict[str, Any]:
    """Returns a result as a JSON value."""
    usage, speculation = result.usage, result.speculation
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "stop_token_id": result.stop_token_id,
        "token_texts": result.token_texts,
        "text_offsets": result.text_offsets,
        "logprobs": [_logprobs_json(each) for each in result.logprobs],
        "prompt": _prompt_json(result.prompt) if result.prompt else None,
        "seed": result.seed,
        "request_id": result.request_id,
        "resumes": result.resumes,
        "restarts": result.restarts,
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
            "hits": speculation.hits,
            "acceptance": speculation.acceptance,
            "preset": speculation.preset,
            "threshold": speculation.threshold,
            "posterior_threshold": speculation.posterior_threshold,
            "posterior_alpha": speculation.posterior_alpha,
            "lossless": speculation.lossless,
            "planning": speculation.planning,
            "drafts": speculation.drafts,
            "accepted_per_position": speculation.accepted_per_position,
            "drafters": [share_json(share) for share in speculation.drafters],
        },
    }


def _prompt_json(prompt: PromptReport) -> dict[str, Any]:
    """Returns a prompt report as a JSON value."""
    return {
        "text": prompt.text,
        "token_ids": prompt.token_ids,
        "token_texts": prompt.token_texts,
        "text_offsets": prompt.text_offsets,
        "logprobs": [each and _logprobs_json(each) for each in prompt.logprobs],
    }


def _logprobs_json(logprobs: TokenLogProbs) -> dict[str, Any]:
    return {
        **_logprob_json(logprobs.token),
        "rank": logprobs.rank,
        "top": [_logprob_json(each) for each in logprobs.top],
    }


def _logprob_json(logprob: TokenLogProb) -> dict[str, Any]:
    return {
        "token_id": logprob.token_id,
        "logprob": logprob.logprob,
        "text": logprob.text,
        "bytes": list(logprob.text_bytes),
    }


def share_json(share: DrafterShare) -> dict[str, Any]:
    """Returns a drafter's share in a request as a JSON value."""
    return {
        "name": share.name,
        "draft_tokens": share.draft_tokens,
        "accepted_tokens": share.accepted_tokens,
        "acceptance_rate": share.acceptance_rate,
    }


def drafter_json(drafter: Drafter) -> dict[str, Any]:
    """Returns a drafter as a JSON value."""
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
        "labels": drafter.labels,
        "accepted_per_second": drafter.accepted_per_second,
        "trusted": drafter.trusted,
        "lossy_draft_tokens": drafter.lossy_draft_tokens,
        "lossy_accepted_tokens": drafter.lossy_accepted_tokens,
        "resting": drafter.resting,
        "last_error": str(drafter.last_error) if drafter.last_error else None,
    }


def rollout_json(rollout: Rollout) -> dict[str, Any]:
    """Returns a rollout as a JSON value."""
    return {
        "old": _side_json(rollout.old),
        "new": _side_json(rollout.new),
        "share": rollout.share,
        "state": rollout.state,
        "reason": rollout.reason or None,
        "started_at": rollout.started_at.isoformat() if rollout.started_at else None,
        "ended_at": rollout.ended_at.isoformat() if rollout.ended_at else None,
    }


def _side_json(side: RolloutSide) -> dict[str, Any]:
    return {
        "name": side.name,
        "sequences": side.sequences,
        "steps": side.steps,
        "draft_tokens": side.draft_tokens,
        "accepted_tokens": side.accepted_tokens,
        "acceptance_rate": side.acceptance_rate,
        "accepted_per_step": side.accepted_per_step,
    }


def model_load_json(load: ModelLoad) -> dict[str, Any]:
    """Returns a change of a drafter service's model as a JSON value."""
    return {
        "model": load.model,
        "request_id": load.request_id,
        "state": load.state,
        "error": str(load.error) if load.error else None,
        "started_at": load.started_at.isoformat() if load.started_at else None,
    }
