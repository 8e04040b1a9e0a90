"""llama.cpp's server, compiled for this processor, on a GGUF file as it is."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.runners.answering import Arrivals, Generate, answer
from benchmarks.peers.runners.llama_completions import completions
from benchmarks.peers.runners.llama_server import server_program, start_server

_NO_TOKEN = -1


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the server. Each kind of speculation has its own process, since the server takes it at start."""
    threads, setting = str(order["threads"]), order["setting"]
    arguments = ["--model", order["target"], "--ctx-size", str(order["max_length"])]
    arguments += ["--threads", threads, "--threads-batch", threads]
    if setting.get("spec-type") == "draft-simple":
        arguments += ["--spec-draft-model", order["draft"], "--spec-draft-threads", threads]
    for flag, value in setting.items():
        arguments += [f"--{flag}", str(value)]
    port, version = start_server(server_program(""), arguments)
    complete = completions(port, _options)

    def generate(prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]:
        tokens = complete(prompt, max_tokens, setting, arrived)
        if not tokens:  # the answer has ended at once, and llama.cpp returns no token for that
            arrived(1)
            tokens.append(_NO_TOKEN)
        return tokens

    return generate, version


def _options(setting: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of requests that stop at the end of an answer."""
    sampling = {"temperature": setting["temperature"], "seed": setting["seed"]}
    if setting["temperature"]:
        return sampling | {"samplers": ["temperature"]}
    return sampling | {"top_k": 1, "samplers": ["top_k"]}


if __name__ == "__main__":
    answer(load)
