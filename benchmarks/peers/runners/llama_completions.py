"""Requests to llama.cpp's server."""

from __future__ import annotations

import http.client
import json
from typing import Any

from benchmarks.peers.runners.answering import Arrivals, Generate

_REQUEST_SECONDS = 300.0


def completions(port: int) -> Generate:
    """Returns a generator for the server on this port of this machine. It raises RuntimeError if the server refuses."""

    def generate(prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]:
        request = {
            "prompt": prompt, "n_predict": max_tokens, "temperature": 0.0, "top_k": 1, "samplers": ["top_k"],
            "ignore_eos": True, "cache_prompt": False, "stream": True, "return_tokens": True,
        }  # fmt: skip
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
