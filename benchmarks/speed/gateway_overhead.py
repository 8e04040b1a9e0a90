"""Compares the same streams through the HTTP gateway and through the SDK.

    python -m benchmarks.speed.gateway_overhead [--streams 8] [--json]

The services are one verifier with a drafter, and a gateway in front of it. --streams held-out prompts are continued at
once and streamed to a client that reads each chunk: in turns through the SDK, and over HTTP with httpx, which parses
the events. Tokens per second cover all streams, from the first request to the end of the last. Outputs are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.harness.services import Services
from draftwire import AsyncClient
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

_SEED = 1

Stream = Callable[[str, int], Awaitable[str]]
"""Generates from a prompt with a seed; returns the text."""


def through_sdk(client: AsyncClient, max_tokens: int) -> Stream:
    """Returns a Stream that uses the SDK."""

    async def stream(prompt: str, seed: int) -> str:
        options = {"max_tokens": max_tokens, "temperature": 0.0, "seed": seed, "ignore_eos": True}
        return "".join([chunk.text async for chunk in client.stream(prompt, **options)])

    return stream


def through_gateway(client: httpx.AsyncClient, max_tokens: int) -> Stream:
    """Returns a Stream over HTTP."""

    async def stream(prompt: str, seed: int) -> str:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "seed": seed, "ignore_eos": True}
        text = ""
        async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        return text

    return stream


async def rate(stream: Stream, prompts: list[str], max_tokens: int) -> tuple[float, list[str]]:
    """Returns the tokens per second of all prompts at once, and the texts."""
    began = time.perf_counter()
    texts = await asyncio.gather(*(stream(prompt, _SEED + index) for index, prompt in enumerate(prompts)))
    return len(prompts) * max_tokens / (time.perf_counter() - began), list(texts)


async def measure(options: argparse.Namespace, verifier: str, url: str) -> dict[str, object]:
    """Measures both in turns."""
    prompts = held_out_prompts(options.streams)
    rates: dict[str, list[float]] = {"sdk": [], "gateway": []}
    timeout = httpx.Timeout(600.0)
    async with AsyncClient(verifier) as sdk, httpx.AsyncClient(base_url=url, timeout=timeout) as http:
        ways = {"sdk": through_sdk(sdk, options.max_tokens), "gateway": through_gateway(http, options.max_tokens)}
        for run in range(options.runs + 1):
            texts = []
            for name in sorted(ways, reverse=run % 2 == 1):
                found, text = await rate(ways[name], prompts, options.max_tokens)
                texts.append(text)
                if run:  # the first one warms up
                    rates[name].append(found)
            if texts[0] != texts[1]:
                raise SystemExit("the gateway's texts differ from the SDK's")
    return {
        "streams": options.streams,
        "tokens each": options.max_tokens,
        "SDK, tokens/s": Spread.of(rates["sdk"]),
        "gateway, tokens/s": Spread.of(rates["gateway"]),
        "gateway / SDK": Spread.ratio(rates["gateway"], rates["sdk"]),
    }


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODELS / "target")
    parser.add_argument("--drafter", default="local:ngram", help="address of a drafter to attach")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=7)
    add_report_options(parser)
    options = parser.parse_args()
    with Services() as services:
        verifier = services.verifier(options.model, "--drafter", options.drafter).address
        figures = asyncio.run(measure(options, verifier, services.gateway([verifier]).url))
    print_report("gateway_overhead", figures, options)


if __name__ == "__main__":
    main()
