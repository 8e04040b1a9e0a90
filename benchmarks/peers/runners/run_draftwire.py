"""This project's two services, or the verifier alone, in this repository's environment."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness.services import Services
from benchmarks.peers.runners.answering import Arrivals, Generate, answer
from draftwire import Client, Speculation

_SLOTS = ("--kv-slots", "4096")


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the services. One process serves all methods with the same number of verifier threads."""
    running = ExitStack()
    atexit.register(running.close)
    verifying = running.enter_context(Services(threads=order["setting"]["verifier threads"]))
    drafting = running.enter_context(Services(threads=1))
    verifier = verifying.verifier(Path(order["target"]), *_SLOTS, "--no-prefix-cache", cores=order["cores"])
    drafter = drafting.drafter(Path(order["draft"]), *_SLOTS, cores=order["drafter_cores"])
    client = Client(verifier.address, timeout=300.0)
    client.drafters.attach(drafter.address, "drafter")
    client.drafters.attach(f"local:draft?model={order['draft']}", name="within")
    client.drafters.attach("local:ngram")

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

    return generate, "weights, arithmetic and KV cache bfloat16"


if __name__ == "__main__":
    answer(load)
