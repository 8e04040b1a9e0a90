"""Generates with SGLang on CPUs in an environment that has it, and prints a line of JSON for each event.

    python sglang_child.py '{"model": DIR, "prompts": [[id, ...], ...], "max_tokens": N, "arguments": {...}}'

It generates once a line arrives on standard input. The folder tests/harness/stand_ins/sglang_packages is on its path.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from media_names import provide

provide()

from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS  # noqa: E402

# Without SGLang's compiled kernels it takes torch's attention, which verifies no trees. That of its AMX backend does;
# its kernels are there, in torch. This is done in each of SGLang's processes, as they import this module.
ATTENTION_BACKENDS["torch_native"] = ATTENTION_BACKENDS["intel_amx"]


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    order = json.loads(sys.argv[1])

    def say(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    import sglang

    engine = sglang.Engine(
        model_path=order["model"],
        device="cpu",
        dtype="bfloat16",
        context_length=512,
        max_running_requests=4,
        max_total_tokens=4096,
        mem_fraction_static=0.5,
        disable_radix_cache=True,
        **order["arguments"],
    )
    say(ready=True)
    sys.stdin.readline()
    sampling = {"temperature": 0, "max_new_tokens": order["max_tokens"], "ignore_eos": True}
    outputs = engine.generate(input_ids=order["prompts"], sampling_params=sampling)
    say(
        texts=[output["output_ids"] for output in outputs],
        steps=sum(output["meta_info"].get("spec_verify_ct") or 0 for output in outputs),
    )
    engine.shutdown()


if __name__ == "__main__":
    main()
