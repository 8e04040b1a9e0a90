"""vLLM on a CPU: plain, with a draft model, n-gram lookup, draftwire's remote drafters; bfloat16.

A setting may have a temperature, with which a prompt's length is its request's seed, and `coupled`, draftwire's own
setting; the rest is vLLM's speculative configuration.
"""

from __future__ import annotations

import os
import time
from itertools import count
from typing import Any

from benchmarks.peers.runners.answering import Arrivals, Generate, answer

# By default one process takes nearly all memory; here several exist side by side and take turns.
_MEMORY_SHARE = 0.1
_KV_BYTES = 512 * 1024 * 1024


def _timed_proposals(times: list[float], lengths: list[int]) -> None:
    """Has every call of the remote proposer append its seconds to `times`, and its draft tokens to `lengths`."""
    from draftwire_core.adapters.vllm.remote_drafter import RemoteDrafter

    propose = RemoteDrafter.propose

    def timed(self: RemoteDrafter, *given: Any, **named: Any) -> list[list[int]]:
        started = time.perf_counter()
        try:
            drafts = propose(self, *given, **named)
        finally:
            times.append(time.perf_counter() - started)
        lengths.append(sum(map(len, drafts)))
        return drafts

    RemoteDrafter.propose = timed  # type: ignore[method-assign]


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Loads the models. Each setting has its own process, since vLLM takes it at load."""
    from vllm import LLM, SamplingParams  # the engine's processes import this file anew

    speculation = dict(order["setting"])
    eager = bool(speculation.pop("enforce_eager", False))
    temperature = float(speculation.pop("temperature", 0.0))
    coupled = speculation.pop("coupled", True)
    if speculation.get("method") == "draft_model":
        speculation["model"] = order["draft"]
    remote = speculation.get("method") == "custom_class"
    held: list[float] = []
    lengths: list[int] = []
    if remote:
        os.environ["DRAFTWIRE_VLLM_COUPLED_SAMPLING"] = str(coupled)
        _timed_proposals(held, lengths)
    engine = LLM(
        order["target"],
        dtype="bfloat16",
        max_model_len=order["max_length"],
        max_num_seqs=1,
        enable_prefix_caching=False,
        gpu_memory_utilization=_MEMORY_SHARE,
        kv_cache_memory_bytes=_KV_BYTES,
        speculative_config=speculation or None,
        enforce_eager=eager,
        worker_cls="draftwire_vllm.worker.Worker" if remote else "auto",
        disable_log_stats=True,
        seed=0,
    ).llm_engine
    numbers = count()

    def generate(prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]:
        sampling = SamplingParams(
            temperature=temperature, seed=len(prompt), max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        engine.add_request(str(next(numbers)), {"prompt_token_ids": prompt}, sampling)
        tokens: list[int] = []
        held.clear()
        lengths.clear()
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
                arrived(len(tokens))
        arrived.held += held
        arrived.drafted = sum(lengths)
        return tokens

    return generate, "weights, arithmetic and KV cache bfloat16"


if __name__ == "__main__":
    answer(load)
