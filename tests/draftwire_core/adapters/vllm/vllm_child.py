"""Generates with vLLM in an environment that has it, and prints a line of JSON for each event its parent waits for.

    python vllm_child.py '{"model": DIR, "prompts": [[id, ...], ...], "max_tokens": N, "speculative": true, "held": M,
                           "sampling": [{"temperature": 0.0}, ...]}'

The last `held` prompts start only when a line arrives on standard input, while the others run. `sampling` has the
sampling parameters of each prompt.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    order = json.loads(sys.argv[1])

    def say(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    from vllm import LLM, SamplingParams

    remote = {"method": "custom_class", "model": "draftwire_vllm.RemoteDrafter", "num_speculative_tokens": 4}
    engine = LLM(
        order["model"],
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        enforce_eager=True,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=64 * 1024 * 1024,
        speculative_config=remote if order["speculative"] else None,
        worker_cls="draftwire_vllm.worker.Worker" if order["speculative"] else "auto",
        disable_log_stats=True,
        seed=0,
    ).llm_engine
    drafter = None
    if order["speculative"]:
        drafter = engine.model_executor.driver_worker.worker.model_runner.drafter
        say(address=drafter.address)
        sys.stdin.readline()  # until the drafters are attached
    fixed = {"max_tokens": order["max_tokens"], "ignore_eos": True, "detokenize": False}
    prompts = order["prompts"]
    at_once = len(prompts) - order["held"]

    def add(numbers: range) -> None:
        for number in numbers:
            sampling = SamplingParams(**fixed, **order["sampling"][number])
            engine.add_request(str(number), {"prompt_token_ids": prompts[number]}, sampling)

    go_on = threading.Event()
    if order["held"]:

        def read() -> None:
            sys.stdin.readline()
            go_on.set()

        threading.Thread(target=read, daemon=True).start()
    texts: dict[str, list[int]] = {}
    add(range(at_once))
    held, told = bool(order["held"]), False
    while engine.has_unfinished_requests() or held:
        if held and (go_on.is_set() or not engine.has_unfinished_requests()):
            go_on.wait()
            held = False
            add(range(at_once, len(prompts)))
        for output in engine.step():
            if output.finished:
                texts[output.request_id] = list(output.outputs[0].token_ids)
        if not told and len(texts) >= 4:
            told = True
            say(running=True)
    faults = dict(drafter.faults) if drafter is not None else {}
    say(texts=[texts[str(number)] for number in range(len(prompts))], faults=faults)
    sys.stdin.readline()  # until the parent has checked the pool; then it ends this process


if __name__ == "__main__":
    main()
