"""Requests to llama.cpp's server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

from benchmarks.peers.runners.answering import Arrivals, Generate

_REQUEST_SECONDS = 300.0


def to_the_end(setting: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of greedy requests that do not stop at the end of an answer."""
    return {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"], "ignore_eos": True}


def completions(
    port: int, options: Callable[[dict[str, Any]], dict[str, Any]] = to_the_end, server: object = None
) -> Generate:
    """Returns a generator for the server on this port of this machine. It raises RuntimeError if the server refuses.

    options: returns a request's own options, given its setting. server: lives as long as the generator.
    """

    def generate(
        prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals, _: object = server
    ) -> list[int]:
        request = {
            "prompt": prompt, "n_predict": max_tokens, "cache_prompt": False, "stream": True, "return_tokens": True,
        } | options(setting)  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_REQUEST_SECONDS)
        try:
            connection.request("POST", "/completion", json.dumps(request), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"llama-server answers {response.status}: {response.read().decode()}")
            tokens: list[int] = []
            for line in response:
                if line.startswith(b"data: "):
                    new = json.loads(line.removeprefix(b"data: ")).get("tokens", [])
                    tokens += new
                    arrived(len(new))
        finally:
            connection.close()
        return tokens

    return generate
