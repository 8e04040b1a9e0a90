"""Floods a verifier with large and odd texts; measures how long a bystander waits, and the memory.

    python -m benchmarks.faults.fuzz_texts [--calls 8] [--megabytes 15] [--flood text,prediction]
        [--seconds 60] [--seed N]

The verifier is a real one of the bundled target. First comes a flood for each field that holds text or ids: --calls
calls at once, each with a text of --megabytes and a deadline of ten seconds. Then come odd texts of random sizes in
random fields, some of them cancelled at random moments. Meanwhile a bystander repeatedly generates from a short prompt:
its waits are reported, and its output must not change. The verifier's memory is sampled throughout, and once more after
a while without work. The exit status is 1 if an output changed, a call ended with an unexpected error, or the verifier
was harmed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from benchmarks.harness.process_usage import Usage
from benchmarks.harness.report import add_report_options, end_with_faults
from benchmarks.harness.service_logs import logged_faults
from benchmarks.harness.services import Services
from draftwire import AsyncClient, DeadlineExceededError
from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.checkout import MODELS

_SERVICE = "/draftwire.v1.VerifierService/"
_BYSTANDER = "def f(x):"
_DEADLINE_SECONDS = 10.0
"""Deadline in seconds of each call of the flood."""
_PATIENCE_SECONDS = 300.0
"""Deadline in seconds of the bystander's requests, long enough that its waits can be measured."""
_PAUSE_SECONDS = 0.2
"""Seconds between the bystander's requests."""
_SAMPLE_SECONDS = 0.05
_IDLE_SECONDS = 15.0
"""Seconds without work in which memory may be released."""
_LARGEST = 15_000_000
_TYPED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Status codes with which a call may end."""

Request = pb.GenerateRequest | pb.TokenizeRequest | pb.DetokenizeRequest


@dataclass
class Findings:
    """Counts, waits and memory of a run."""

    waits: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of the bystander's requests, by concurrent activity."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """The verifier's peak resident memory, by concurrent activity."""
    ends: Counter[str] = field(default_factory=Counter)
    """Outcomes of calls, by method and code."""
    faults: list[str] = field(default_factory=list)


# Requests with texts of about the given number of bytes

TEXTS: dict[str, Callable[[int], str]] = {
    "words": lambda size: "word " * (size // 5),
    "code": lambda size: "def f(x):\n    return x + 1\n" * (size // 26),
    "one letter": lambda size: "a" * size,
    "spaces": lambda size: " " * size,
    "new lines": lambda size: "\n" * size,
    "digits": lambda size: "1234567890" * (size // 10),
    "punctuation": lambda size: "!?(){}[];" * (size // 9),
    "emoji": lambda size: "\N{SNAKE}" * (size // 4),
    "combining marks": lambda size: "e" + "\N{COMBINING ACUTE ACCENT}" * (size // 2),
    "control characters": lambda size: "\0\x01\x1b" * (size // 3),
    "right to left": lambda size: "\N{RIGHT-TO-LEFT OVERRIDE}\N{HEBREW LETTER ALEF}" * (size // 5),
    "unassigned": lambda size: "\U000e1234" * (size // 4),
    "special tokens": lambda size: "<|endoftext|>" * (size // 13),
    "template": lambda size: "{% for x in range(999999999) %}{{ x }}{% endfor %}" * (size // 50),
}


def _ids(size: int) -> list[int]:
    return [5] * (size // 2)


def _turns(text: str, turns: int) -> pb.ChatMessages:
    part = max(1, len(text) // turns)
    return pb.ChatMessages(
        messages=[pb.ChatMessage(role="user", content=text[i : i + part]) for i in range(0, len(text), part)]
    )


def _small(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6, 7]), max_tokens=1, **fields)


FIELDS: dict[str, tuple[str, Callable[[str], Request]]] = {
    "text": ("Generate", lambda text: pb.GenerateRequest(text=text, max_tokens=1)),
    "one message": ("Generate", lambda text: pb.GenerateRequest(messages=_turns(text, 1), max_tokens=1)),
    "many messages": ("Generate", lambda text: pb.GenerateRequest(messages=_turns(text, 200_000), max_tokens=1)),
    "prediction": ("Generate", lambda text: _small(speculation={"prediction": {"text": text}})),
    "resumed": ("Generate", lambda text: _small(resume_token_ids=_ids(len(text)))),
    "stop": ("Generate", lambda text: _small(stop=[text])),
    "many stops": ("Generate", lambda text: _small(stop=["x"] * (len(text) // 3))),
    "bad word": ("Generate", lambda text: _small(sampling={"bad_words": [text]})),
    "drafter names": ("Generate", lambda text: _small(speculation={"drafter_names": ["x"] * (len(text) // 3)})),
    "choice": ("Generate", lambda text: _small(structured_output={"choice": {"texts": [text]}})),
    "Tokenize": ("Tokenize", lambda text: pb.TokenizeRequest(text=text)),
    "Tokenize messages": ("Tokenize", lambda text: pb.TokenizeRequest(messages=_turns(text, 200_000))),
    "Detokenize": ("Detokenize", lambda text: pb.DetokenizeRequest(token_ids=_ids(len(text)))),
}
"""The fields that hold a text or ids: their method and request."""
FLOODED = ("text", "one message", "many messages", "prediction", "resumed", "Tokenize", "Detokenize")


class TextFuzzer:
    """An attack on one verifier."""

    def __init__(self, address: str, pid: int, seed: int) -> None:
        self.findings = Findings()
        self._address = address
        self._pid = pid
        self._rng = random.Random(seed)
        self._doing = "alone"
        self._expected: tuple[int, ...] | None = None

    async def run(self, flooded: Sequence[str], calls: int, size: int, seconds: float) -> Findings:
        """Floods each of some FIELDS with `calls` texts of `size` bytes, then sends odd ones for `seconds`."""
        async with AsyncClient(self._address, timeout=_PATIENCE_SECONDS) as client:
            sampling = asyncio.create_task(self._sample())
            for _ in range(5):
                await self._bystand(client)
            for name in flooded:
                async with self._bystanding(client, f"flood: {name}"):
                    await self._flood(name, calls, size)
            async with self._bystanding(client, "odd texts"):
                until = time.monotonic() + seconds
                await asyncio.gather(*(self._odd(until) for _ in range(4)))
            self._doing = "afterwards"
            await asyncio.sleep(_IDLE_SECONDS)
            sampling.cancel()
            await asyncio.wait({sampling})
            self.findings.peak_bytes["afterwards"] = self._resident()
            engine = (await client.model_info()).engine
            if engine.running_sequences or engine.waiting_requests or engine.used_slots:
                self.findings.faults.append(f"something is left in the engine: {engine}")
        return self.findings

    def _resident(self) -> int:
        usage = Usage.of(self._pid)
        if usage is None:
            raise RuntimeError("the verifier has ended")
        return usage.rss_bytes

    async def _sample(self) -> None:
        peak = self.findings.peak_bytes
        while True:
            peak[self._doing] = max(peak.get(self._doing, 0), self._resident())
            await asyncio.sleep(_SAMPLE_SECONDS)

    # The bystander

    async def _bystand(self, client: AsyncClient) -> None:
        doing, began = self._doing, time.perf_counter()
        try:
            generation = await client.generate(_BYSTANDER, max_tokens=4, temperature=0.0, ignore_eos=True)
        except DeadlineExceededError:
            self.findings.faults.append(f"the bystander had nothing after {_PATIENCE_SECONDS:g} s ({doing})")
            return
        finally:
            self.findings.waits.setdefault(doing, []).append(time.perf_counter() - began)
        tokens = tuple(generation.token_ids)
        if self._expected is None:
            self._expected = tokens
        if tokens != self._expected:
            self.findings.faults.append(f"the bystander got {tokens}, not {self._expected}")

    @asynccontextmanager
    async def _bystanding(self, client: AsyncClient, doing: str) -> AsyncIterator[None]:
        """Lets the bystander generate meanwhile, and once more right after."""
        self._doing = doing
        over = asyncio.Event()

        async def go_on() -> None:
            while not over.is_set():
                await asyncio.sleep(_PAUSE_SECONDS)
                await self._bystand(client)

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            over.set()
            await task

    # The attacks

    async def _flood(self, name: str, calls: int, size: int) -> None:
        method, make = FIELDS[name]
        data = make(TEXTS["code"](size)).SerializeToString()
        async with self._channels(calls) as channels:
            await asyncio.gather(*(self._call(channel, method, data, _DEADLINE_SECONDS) for channel in channels))

    async def _odd(self, until: float) -> None:
        rng = random.Random(self._rng.getrandbits(64))
        async with self._channels(1) as (channel,):
            while time.monotonic() < until:
                size = int(10 ** rng.uniform(0, 7.176))
                method, make = FIELDS[rng.choice(list(FIELDS))]
                data = make(TEXTS[rng.choice(list(TEXTS))](min(size, _LARGEST))).SerializeToString()
                patience = rng.choice((0.01, 0.1, 1.0, 30.0))
                await self._call(channel, method, data, patience)

    @asynccontextmanager
    async def _channels(self, count: int) -> AsyncIterator[list[grpc.aio.Channel]]:
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        # One connection each, so that these are separate callers and not one with a long queue.
        options.append(("grpc.use_local_subchannel_pool", 1))
        channels = [grpc.aio.insecure_channel(self._address, options=options) for _ in range(count)]
        try:
            yield channels
        finally:
            for channel in channels:
                await channel.close()

    async def _call(self, channel: grpc.aio.Channel, method: str, data: bytes, deadline: float) -> None:
        if method == "Generate":
            call: Any = channel.unary_stream(_SERVICE + method)(data, timeout=deadline)
        else:
            call = channel.unary_unary(_SERVICE + method)(data, timeout=deadline)
        code = await call.code()
        self.findings.ends[f"{method} {code.name}"] += 1
        if code not in _TYPED:
            self.findings.faults.append(f"{method} ended with {code.name}: {await call.details()}")


async def attack(
    services: Services, model: Path, flooded: Sequence[str], calls: int, size: int, seconds: float, seed: int
) -> Findings:
    """Starts a verifier, attacks it, and reads its log."""
    verifier = services.verifier(model)
    address = await asyncio.to_thread(lambda: verifier.address)
    findings = await TextFuzzer(address, verifier.pid, seed).run(flooded, calls, size, seconds)
    if not verifier.alive:
        findings.faults.append("the verifier has ended")
    findings.faults += logged_faults(verifier.log)
    return findings


def main() -> None:
    """Attacks the verifier and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=8, help="concurrent calls of each flood")
    parser.add_argument("--megabytes", type=float, default=15.0, help="size of each text of a flood, in megabytes")
    parser.add_argument("--flood", default=",".join(FLOODED), help="fields to flood, of: " + ", ".join(FIELDS))
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of odd texts")
    parser.add_argument("--seed", type=int, default=None, help="seed of everything random; printed")
    parser.add_argument("--target", type=Path, default=MODELS / "target")
    add_report_options(parser)
    options = parser.parse_args()
    flooded = [name for name in options.flood.split(",") if name]
    if unknown := set(flooded) - set(FIELDS):
        parser.error(f"--flood: there is no {', '.join(sorted(unknown))}")
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    with Services() as services:
        size = int(1e6 * options.megabytes)
        made = attack(services, options.target, flooded, options.calls, size, options.seconds, seed)
        findings = asyncio.run(made)
    figures: dict[str, object] = {"seed": seed}
    for doing, waits in findings.waits.items():
        figures[f"bystander, {doing}"] = (
            f"{statistics.median(waits):.3f} s in the middle, {max(waits):.3f} s at most, {len(waits)} requests"
        )
    for doing, peak in findings.peak_bytes.items():
        figures[f"memory, {doing}"] = f"{peak / 1e6:.0f} MB"
    figures["ends of calls"] = dict(sorted(findings.ends.items()))
    figures["faults"] = len(findings.faults)
    end_with_faults("fuzz_texts", figures, findings.faults, options)


if __name__ == "__main__":
    main()
