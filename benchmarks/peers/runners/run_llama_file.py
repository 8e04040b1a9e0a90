"""llama.cpp on a GGUF file as it is: the server in the wheel of xllamacpp, in an environment of its own."""

from __future__ import annotations

from typing import Any

import xllamacpp

from benchmarks.peers.runners.answering import Arrivals, Generate, answer
from benchmarks.peers.runners.llama_completions import completions

_NO_TOKEN = -1


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the server. Each kind of speculation has its own process, since the server takes it at start."""
    threads, setting = order["threads"], order["setting"]
    options = xllamacpp.CommonParams()
    options.model.path = order["target"]
    options.n_ctx, options.n_parallel, options.n_gpu_layers, options.cache_ram_mib = order["max_length"], 1, 0, 0
    drafting = options.speculative
    for each in (options.cpuparams, options.cpuparams_batch, drafting.draft.cpuparams, drafting.draft.cpuparams_batch):
        each.n_threads = threads
    if kind := setting.get("type"):
        name = f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"
        drafting.types = [getattr(xllamacpp.common_speculative_type, name)]
        if kind != "ngram-cache":
            part = getattr(drafting, "draft" if kind == "draft-simple" else kind.replace("-", "_"))
            for option, value in setting["options"].items():
                setattr(part, option, value)
        if kind == "draft-simple":
            drafting.draft.mparams.path = order["draft"]
    server = xllamacpp.Server(options)
    complete = completions(int(server.listening_address.rsplit(":", 1)[1]), _options, server)

    def generate(prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]:
        tokens = complete(prompt, max_tokens, setting, arrived)
        if not tokens:  # the answer has ended at once, and llama.cpp returns no token for that
            arrived(1)
            tokens.append(_NO_TOKEN)
        return tokens

    return generate, xllamacpp.get_system_info().strip()


def _options(setting: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of requests that stop at the end of an answer."""
    sampling = {"temperature": setting["temperature"], "seed": setting["seed"]}
    if setting["temperature"]:
        return sampling | {"samplers": ["temperature"]}
    return sampling | {"top_k": 1, "samplers": ["top_k"]}


if __name__ == "__main__":
    answer(load)
