"""llama.cpp's server, compiled for this processor: plain, with a draft model, with n-gram lookup, with both."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.runners.answering import Generate, answer
from benchmarks.peers.runners.gguf_export import exported
from benchmarks.peers.runners.llama_completions import completions
from benchmarks.peers.runners.llama_server import server_program, start_server


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the server. Each setting has its own process, since the server takes it at start."""
    cache, weights, programs, threads = order["cache"], order["weights"], order["llama_cpp"], str(order["threads"])
    setting = dict(order["setting"])
    kv = setting.pop("kv-cache", "f16")
    arguments = ["--model", str(exported(order["target"], cache, weights, programs))]
    arguments += ["--threads", threads, "--threads-batch", threads, "--ctx-size", str(order["max_length"])]
    arguments += ["--cache-type-k", kv, "--cache-type-v", kv]
    if "draft-simple" in setting.get("spec-type", ""):
        draft = exported(order["draft"], cache, weights, programs)
        arguments += ["--spec-draft-model", str(draft), "--spec-draft-threads", threads]
    for flag, value in setting.items():
        arguments += [f"--{flag}", str(value)]
    port, version = start_server(server_program(programs), arguments)
    return completions(port), f"weights {weights}, KV cache {kv}, {version}"


if __name__ == "__main__":
    answer(load)
