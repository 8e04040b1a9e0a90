"""transformers: plain, assisted generation, prompt lookup; bfloat16 as it is."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.runners.answering import Arrivals, Generate, answer


class _Streamer:
    """Receives new tokens from `generate`; the first call has the prompt."""

    def __init__(self, arrived: Arrivals) -> None:
        self._arrived = arrived
        self._prompt = True

    def put(self, tokens: torch.Tensor) -> None:
        if not self._prompt:
            self._arrived(tokens.numel())
        self._prompt = False

    def end(self) -> None:
        pass


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Loads the models."""
    torch.set_num_threads(order["threads"])
    models = [AutoModelForCausalLM.from_pretrained(order[name], dtype=torch.bfloat16) for name in ("target", "draft")]
    target, draft = models
    for model in models:
        model.generation_config.eos_token_id = None

    def generate(prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]:
        options: dict[str, Any] = {}
        if "num_assistant_tokens" in setting:
            draft.generation_config.num_assistant_tokens = setting["num_assistant_tokens"]
            draft.generation_config.num_assistant_tokens_schedule = setting.get("schedule", "constant")
            draft.generation_config.assistant_confidence_threshold = setting.get("confidence", 0.0)
            options["assistant_model"] = draft
        elif setting:
            options |= setting
        ids = torch.tensor([prompt])
        given = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=_Streamer(arrived),
            **options,
        )
        return given[0, len(prompt) :].tolist()

    return generate, "weights and arithmetic bfloat16"


if __name__ == "__main__":
    answer(load)
