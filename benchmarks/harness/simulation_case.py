"""A measured pair of services in the format that pipeline_sim.py --validate reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.harness.simulated_models import Place
from draftwire import Calibration, StepCost

_CANDIDATES = 3
"""Most children of a node."""


def simulation_case(
    name: str,
    target: Sequence[StepCost],
    draft: Sequence[StepCost],
    calibration: Calibration,
    round_trip_ms: float,
    steps: Mapping[str, tuple[Sequence[StepCost], Sequence[StepCost]]],
    texts: Sequence[Sequence[Place]],
    measured: Mapping[str, float],
    **sizes: int,
) -> dict[str, object]:
    """Returns a case of pipeline_sim's file, whose docstring explains the fields.

    target and draft: the services' reported step costs; calibration: what the verifier has learned about the drafter;
    round_trip_ms: of the link alone; steps: by policy, step costs reported by other services that run it, target and
    draft; measured: tokens per second by policy; sizes: tokens, requests, max_tree_nodes.
    """
    # A verdict that leaves an empty tree reaches the drafter, on average, in mid-step, and waits for the next step.
    beyond_drafting = 1e3 * (calibration.response_seconds - 1.5 * draft[0].seconds)
    return {
        "name": name,
        "target_ms": _curve(target),
        "draft_ms": _curve(draft),
        "steps": {
            policy: {"target_ms": _curve(own_target), "draft_ms": _curve(own_draft)}
            for policy, (own_target, own_draft) in steps.items()
        },
        "texts": texts,
        "round_trip_ms": round(max(round_trip_ms, beyond_drafting), 2),
        "measured": {policy: round(rate, 2) for policy, rate in measured.items()},
        **sizes,
    }


def drafted_places(
    draft: Path, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> list[list[Place]]:
    """Returns a draft model's predictions for texts: for each token of each output, given all tokens before it."""
    model = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.bfloat16)
    texts: list[list[Place]] = []
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        best = logits.float().log_softmax(1).topk(_CANDIDATES)
        texts.append(
            [
                (tokens.index(token) if token in tokens else None, log_probs)
                for token, tokens, log_probs in zip(output, best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        )
    return texts


def _curve(costs: Sequence[StepCost]) -> dict[str, float]:
    return {str(cost.rows): round(1e3 * cost.seconds, 3) for cost in costs}
