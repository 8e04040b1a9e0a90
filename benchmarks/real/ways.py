"""The ways to generate that take turns: draftwire with and without drafters, and llama.cpp on the same file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.harness.services import Services
from benchmarks.peers.catalogue import LLAMA_COMPILED, Method, Peer, Setting
from benchmarks.peers.environment import PeerUnavailable
from benchmarks.peers.process import PeerProcess
from draftwire import AsyncClient, Speculation
from draftwire.errors import DraftwireError
from draftwire_tools.turns import Request, run_request

TEMPERATURES = (0.0, 0.7)
LLAMA = Peer("llama.cpp", "benchmarks.peers.runners.run_llama_file", (Method("plain"),), LLAMA_COMPILED)
"""llama.cpp, compiled for this processor."""
LLAMA_SPECULATION: dict[str, Setting] = {
    "ngram-simple": {"spec-type": "ngram-simple", "spec-ngram-simple-size-n": 3, "spec-ngram-simple-size-m": 8},
    "ngram-map-k": {"spec-type": "ngram-map-k", "spec-ngram-map-k-size-n": 3, "spec-ngram-map-k-size-m": 8},
    "ngram-mod": {
        "spec-type": "ngram-mod",
        "spec-ngram-mod-n-match": 3,
        "spec-ngram-mod-n-min": 1,
        "spec-ngram-mod-n-max": 8,
    },
    "ngram-cache": {"spec-type": "ngram-cache"},
    "draft model": {"spec-type": "draft-simple", "spec-draft-n-max": 5},
}
"""llama.cpp's kinds of speculation; the fastest is measured."""


@dataclass(frozen=True)
class Asked:
    """A request."""

    task: str
    """The task of its prompt."""
    prompt: tuple[int, ...]
    """The prompt's tokens."""
    max_tokens: int
    """Most tokens of the output."""
    temperature: float
    """Softmax temperature; 0 is greedy."""
    seed: int
    """The request's seed."""


class Way(Protocol):
    """One way to generate."""

    @property
    def name(self) -> str:
        """The way's name in tables."""

    async def run(self, asked: Asked) -> Request:
        """Runs a request, to the end of the answer or to its most tokens. Raises PeerUnavailable."""


@dataclass(frozen=True)
class Ours:
    """draftwire with some of the verifier's drafters."""

    name: str
    client: AsyncClient
    drafters: tuple[str, ...] | None
    """Names of the drafters; none for plain decoding. None lets the verifier choose."""

    async def run(self, asked: Asked) -> Request:
        """See Way.run."""
        speculation = Speculation(enabled=False) if self.drafters == () else Speculation(drafters=self.drafters)
        options = {"max_tokens": asked.max_tokens, "temperature": asked.temperature, "seed": asked.seed}
        return await run_request(self.client, asked.prompt, {**options, "speculation": speculation})


@dataclass(frozen=True)
class Llama:
    """llama.cpp with one kind of speculation, or plain."""

    name: str
    process: PeerProcess
    setting: Setting

    async def run(self, asked: Asked) -> Request:
        """See Way.run."""
        setting = {**self.setting, "temperature": asked.temperature, "seed": asked.seed}
        batch = await asyncio.to_thread(self.process.generate, asked.prompt, asked.max_tokens, setting)
        return batch.requests[0]


async def our_ways(
    target: Path, draft: Path, services: Services, threads: int, cores: Sequence[int]
) -> tuple[list[Ours], dict[str, str]]:
    """Starts a verifier with so many threads on the first cores and a drafter that translates on the last one; returns
    the ways, plain decoding first, and by the names of the ways that could not be started the reasons.

    The client's channel lasts as long as the process.
    """
    flags = ("--no-prefix-cache", "--kv-slots", "4096")
    verifier = services.verifier(target, "--threads", str(threads), *flags, cores=cores[:threads])
    client = AsyncClient(await asyncio.to_thread(lambda: verifier.address), timeout=600.0)
    await client.drafters.attach("local:ngram")
    ways = [Ours("plain", client, ()), Ours("lookup", client, ("local:ngram",))]
    if len(cores) <= threads:
        return ways, {"draft model": "no core is left for it"}
    try:
        # After the verifier, which measures its step costs at start.
        drafter = services.drafter(draft, "--target-tokenizer", str(target), "--kv-slots", "4096", cores=cores[-1:])
        await client.drafters.attach(await asyncio.to_thread(lambda: drafter.address), name="draft")
    except (RuntimeError, DraftwireError) as error:
        return ways, {"draft model": _last_line(error)}
    ways += [Ours("draft model", client, ("draft",)), Ours("both", client, ("local:ngram", "draft"))]
    return ways, {}


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1][:400]


class LlamaProcesses:
    """llama.cpp's processes, one for each kind of speculation, which end with the `with` block."""

    def __init__(self, target: Path, draft: Path, cores: Sequence[int], max_length: int) -> None:
        """cores: those that all of them run on, with a thread each. max_length: most tokens of prompt and output."""
        self._order = {"target": str(target), "draft": str(draft), "threads": len(cores), "max_length": max_length}
        self._cores = cores
        self._running: dict[str, PeerProcess] = {}
        self.about = ""
        """llama.cpp's version and compiler."""

    def start(self, kind: str, setting: Setting) -> Llama:
        """Starts a kind of speculation. Raises PeerUnavailable."""
        process = self._running[kind] = PeerProcess(LLAMA, len(self._cores), self._cores)
        self.about = process.load({**self._order, "setting": dict(setting)})
        return Llama(f"llama.cpp {kind}", process, setting)

    async def fastest(self, choosing: Sequence[Asked]) -> tuple[Llama | None, dict[str, str]]:
        """Returns the fastest kind of speculation on some requests, and how fast each was, or why it does not run. The
        others are ended."""
        tried: dict[str, str] = {}
        rates: dict[str, float] = {}
        ways: dict[str, Llama] = {}
        for kind, setting in LLAMA_SPECULATION.items():
            try:
                way = self.start(kind, setting)
                requests = [await way.run(asked) for asked in choosing]
            except PeerUnavailable as problem:
                tried[kind] = str(problem)[:300]
                self.end(kind)
                continue
            seconds = sum(each.arrivals[-1].at - each.asked_at for each in requests)
            rates[kind] = sum(len(each.token_ids) for each in requests) / seconds
            tried[kind] = f"{rates[kind]:.1f} tokens/s"
            ways[kind] = way
            print(f"llama.cpp {kind}: {tried[kind]}", file=sys.stderr, flush=True)
        best = max(rates, key=rates.__getitem__, default=None)
        for kind in set(ways) - {best}:
            self.end(kind)
        return (None if best is None else ways[best]), tried

    def end(self, kind: str) -> None:
        """Ends the process of a kind of speculation, if it runs."""
        if process := self._running.pop(kind, None):
            process.stop()

    def end_all(self) -> None:
        """Ends all processes."""
        for kind in list(self._running):
            self.end(kind)

    def __enter__(self) -> LlamaProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        self.end_all()
