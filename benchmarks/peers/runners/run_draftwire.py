"""This project's two services, or the verifier alone, in this repository's environment."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness.services import Services
from benchmarks.peers.catalogue import EAGLE_WEIGHTS
from benchmarks.peers.runners.answering import Arrivals, Generate, answer
from benchmarks.peers.runners.gguf_export import exported
from draftwire import Client, Speculation

_SLOTS = ("--kv-slots", "4096")


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the services. One process serves all methods with the same number of verifier threads."""
    running = ExitStack()
    atexit.register(running.close)
    verifying = running.enter_context(Services(threads=order["setting"]["verifier threads"]))
    drafting = running.enter_context(Services(threads=1))
    cache, weights = order["cache"], order["weights"]
    target, draft = (
        Path(order[name] if weights == "bf16" else exported(order[name], cache, weights, order["llama_cpp"]))
        for name in ("target", "draft")
    )
    kernels = ("--kernels", order["kernels"])
    verifier = verifying.verifier(target, *_SLOTS, "--no-prefix-cache", *kernels, cores=order["cores"])
    drafter = drafting.drafter(draft, *_SLOTS, cores=order["drafter_cores"])
    client = Client(verifier.address, timeout=300.0)
    client.drafters.attach(drafter.address, "drafter")
    client.drafters.attach(f"local:draft?model={draft}", name="within")
    client.drafters.attach("local:ngram")
    if eagle := order["eagle"]:
        service = drafting.drafter(eagle, "--target", str(target), *_SLOTS, cores=order["drafter_cores"])
        client.drafters.attach(service.address, "EAGLE-3 service")
        for kind in EAGLE_WEIGHTS:
            client.drafters.attach(f"local:eagle3?model={eagle}&weights={kind}", name=f"EAGLE-3, {kind}")

    def generate(prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]:
        stream = client.stream(
            prompt,
            max_tokens=max_tokens,
            temperature=0.0,
            seed=0,
            ignore_eos=True,
            speculation=Speculation(drafters=names) if (names := setting["drafters"]) else Speculation(enabled=False),
        )
        for chunk in stream:
            arrived(len(chunk.token_ids))
        return list(stream.result.token_ids)

    return generate, f"weights {weights}, KV cache bf16"


if __name__ == "__main__":
    answer(load)
