"""Compares a verifier on vLLM with vLLM's own server: plain decoding, one request and many at once.

    python -m benchmarks.peers.vllm_server [--target-millions 400] [--requests 1,16] [--runs 5] [--max-tokens 64]

Both serve the bundled target, inflated (models/inflate.py), in bfloat16, with vLLM's model on the first core, not
compiled, and without its prefix cache; the verifier has vLLM's speculation and no drafter. One client streams from both
in turns, by gRPC and by HTTP. Rates cover the time in which all requests decode.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import add_run_options, counts
from benchmarks.harness.rates import decode_rate
from benchmarks.harness.report import print_report
from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import prepare, vllm_environment
from draftwire import AsyncClient, Speculation
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Arrival, Batch, Request, run_batch, turns
from tests.harness.checkout import MODELS
from tests.harness.lasting_address import lasting_address
from tests.harness.services.vllm_verifier import VLLM_ARGUMENTS, VllmVerifier, serving_variables

_START_SECONDS = 900.0
_PLACES = 32
_VERIFIER, _SERVER = "verifier on vLLM", "vLLM's server"

Stream = Callable[[Sequence[Sequence[int]]], Awaitable[Batch]]
"""Streams the continuations of prompts, given by token ids, all at once."""


class VllmServer:
    """vLLM's OpenAI-compatible server, which runs in the `with` block."""

    def __init__(self, model: Path, logs: Path) -> None:
        self.address = lasting_address()
        host, _, port = self.address.rpartition(":")
        arguments = ["--model", str(model), "--host", host, "--port", port, "--max-num-seqs", str(_PLACES)]
        arguments += [*VLLM_ARGUMENTS, "--dtype", "bfloat16", "--disable-uvicorn-access-log"]
        with (logs / "vllm-server.log").open("wb") as output:
            self._process = subprocess.Popen(
                [str(vllm_environment().python), "-m", "vllm.entrypoints.openai.api_server", *arguments],
                env=os.environ | serving_variables(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Waits until it serves. Raises RuntimeError if it ends or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx.get(f"http://{self.address}/health").status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        raise RuntimeError("vLLM's server does not start: see vllm-server.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()


async def _streamed(http: httpx.AsyncClient, model: str, prompt: Sequence[int], tokens: int) -> Request:
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "cache_salt": secrets.token_hex(16),
    }
    arrivals: list[Arrival] = []
    found: list[int] = []
    asked_at = time.perf_counter()
    async with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                new = json.loads(line[6:])["choices"][0].get("token_ids") or []
                if new:
                    arrivals.append(Arrival(time.perf_counter(), len(new)))
                    found += new
    return Request(tuple(arrivals), tuple(found), asked_at=asked_at)


async def measure(options: argparse.Namespace, model: Path, verifier: str, server: str) -> dict[str, object]:
    """Returns the figures."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    most = max(options.requests)
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in held_out_prompts(most)]
    async with (
        AsyncClient(verifier, timeout=_START_SECONDS) as client,
        httpx.AsyncClient(base_url=f"http://{server}", timeout=_START_SECONDS) as http,
    ):

        async def from_verifier(asked: Sequence[Sequence[int]]) -> Batch:
            plain: Any = {"temperature": 0.0, "ignore_eos": True, "max_tokens": options.max_tokens}
            plain |= {"speculation": Speculation(enabled=False), "prefix_cache": False}
            return await run_batch(client, [(prompt, plain) for prompt in asked])

        async def from_server(asked: Sequence[Sequence[int]]) -> Batch:
            each = (_streamed(http, str(model), prompt, options.max_tokens) for prompt in asked)
            return Batch(tuple(await asyncio.gather(*each)))

        ways: dict[str, Stream] = {_VERIFIER: from_verifier, _SERVER: from_server}
        work = [prompts[:count] for count in options.requests]
        rates: dict[tuple[str, int], list[float]] = {}
        outputs: dict[int, set[object]] = {}
        for run, _, name, asked in turns(list(ways), work, range(-1, options.runs)):
            batch = await ways[name](asked)
            outputs.setdefault(len(asked), set()).add(batch.token_ids)
            if run >= 0:  # the first one warms up
                rates.setdefault((name, len(asked)), []).append(decode_rate([batch]))
    found: dict[str, object] = {}
    for count in options.requests:
        ours, theirs = rates[_VERIFIER, count], rates[_SERVER, count]
        found |= {
            f"{count} at once: {_VERIFIER}, tokens/s": Spread.of(ours),
            f"{count} at once: {_SERVER}, tokens/s": Spread.of(theirs),
            f"{count} at once: {_VERIFIER} / {_SERVER}": Spread.ratio(ours, theirs),
            f"{count} at once: outputs": "all the same" if len(outputs[count]) == 1 else "not all the same",
        }
    return found


def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-millions", type=float, default=400.0)
    parser.add_argument("--requests", type=counts, default=[1, 16], help="numbers of requests at once")
    add_run_options(parser, max_tokens=64)
    options = parser.parse_args()
    prepare()
    model = inflated(MODELS / "target", options.target_millions)
    with Services() as services, VllmServer(model, services.logs) as server:
        flags = ("--model", str(model), "--max-sequences", str(_PLACES))
        verifier = VllmVerifier(flags, services.logs, dtype="bfloat16")
        try:
            server.wait()
            found = asyncio.run(measure(options, model, verifier.address, server.address))
        finally:
            verifier.kill()
    versions = ", ".join(f"{name} {each}" for name, each in vllm_environment().versions.items())
    about = {
        "target": f"bundled, inflated to {options.target_millions:g} M, bfloat16, vLLM not compiled, on one core",
        "requests": f"held-out prompts, greedy, {options.max_tokens} tokens",
        "versions": versions,
    }
    print_report("vllm_server", about | found, options)


if __name__ == "__main__":
    main()
