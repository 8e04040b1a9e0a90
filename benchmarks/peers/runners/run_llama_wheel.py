"""llama.cpp's server from the wheel of xllamacpp, compiled for any processor with AVX2."""

from __future__ import annotations

from typing import Any

import xllamacpp

from benchmarks.peers.runners.answering import Generate, answer
from benchmarks.peers.runners.gguf_export import exported
from benchmarks.peers.runners.llama_completions import completions

_TYPES = {
    "draft-simple": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    "ngram-simple": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
    "ngram-cache": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_CACHE,
}


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the server. Each setting has its own process, since the server takes it at start."""
    cache, threads, setting = order["cache"], order["threads"], order["setting"]
    options = xllamacpp.CommonParams()
    options.model.path = str(exported(order["target"], cache, order["weights"], order["llama_cpp"]))
    options.n_ctx, options.n_parallel, options.n_gpu_layers, options.cache_ram_mib = order["max_length"], 1, 0, 0
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_BF16
    drafting = options.speculative
    for each in (options.cpuparams, options.cpuparams_batch, drafting.draft.cpuparams, drafting.draft.cpuparams_batch):
        each.n_threads = threads
    if setting:
        drafting.types = [_TYPES[setting["spec-type"]]]
    if order["method"] == "draft model":
        drafting.draft.mparams.path = str(exported(order["draft"], cache, order["weights"], order["llama_cpp"]))
        drafting.draft.n_max = setting["spec-draft-n-max"]
    if setting.get("spec-type") == "ngram-simple":
        drafting.ngram_simple.size_n = setting["spec-ngram-simple-size-n"]
        drafting.ngram_simple.size_m = setting["spec-ngram-simple-size-m"]
    server = xllamacpp.Server(options)
    generate = completions(int(server.listening_address.rsplit(":", 1)[1]), server=server)
    return generate, f"weights {order['weights']}, KV cache bf16, {xllamacpp.get_system_info().strip()}"


if __name__ == "__main__":
    answer(load)
