"""Sends random and corrupted messages to a verifier and a drafter while well-behaved clients generate.

    python -m benchmarks.faults.fuzz [--messages 100000] [--seed 1] [--json]

The services are real ones of the bundled models. To the drafter this script is a verifier; to the verifier it is a
client, an operator of its drafters, and a drafter. Valid messages of each role are corrupted (fields, bytes, order) and
sent. Meanwhile well-behaved clients generate with a good drafter, and every output is compared with plain decoding. At
the end both services must be running and healthy, hold no KV slot and have no error in their logs; otherwise the exit
status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.faults import fuzz_messages
from benchmarks.faults.fuzzing_drafter import FuzzingDrafter
from benchmarks.faults.mutations import mutate, mutate_bytes, mutate_order
from benchmarks.harness.report import add_report_options, end_with_faults
from benchmarks.harness.service_logs import logged_faults
from benchmarks.harness.services import Services
from draftwire import AsyncClient, BatchOptions, DraftwireError, Speculation
from draftwire.v1.drafter_service_pb2 import DrafterServiceGetModelInfoRequest
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from tests.harness.checkout import MODELS

SECONDS = 30.0
"""Seconds within which every answer, error or end must come."""
_IN_PARALLEL = 4
_GOOD = "good"
_SAMPLINGS: tuple[BatchOptions, ...] = ({"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 1.2, "top_p": 0.95})
_TYPED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,
}
"""Status codes with which a call may end. Any other code is an unexpected exception."""

_CUT = "Internal error from Core"
"""gRPC's message on our own side when the peer has ended a stream that we are writing to; the real status is lost."""


@dataclass
class Findings:
    """Counts and faults of a fuzzing run."""

    sent: Counter[str] = field(default_factory=Counter)
    """Messages sent, by sender and kind of corruption."""
    codes: Counter[str] = field(default_factory=Counter)
    """Calls, by outcome."""
    good_requests: int = 0
    faults: list[str] = field(default_factory=list)
    """Descriptions of faults."""


class Fuzzer:
    """An attack on one verifier and one drafter."""

    def __init__(self, verifier: str, drafter: str, seed: int) -> None:
        """verifier, drafter: addresses."""
        self.findings = Findings()
        self._addresses = {"Verifier": verifier, "DrafterPool": verifier, "Drafter": drafter}
        self._verifier = verifier
        self._drafter = drafter
        self._rng = random.Random(seed)
        self._vocab_size = 0
        self._attached = 0
        self._stop = asyncio.Event()

    async def run(self, messages: int) -> Findings:
        """Sends this many messages and checks the state of both services."""
        async with AsyncClient(self._verifier, timeout=4 * SECONDS) as client:
            self._vocab_size = (await client.model_info()).vocab_size
            expected = [
                await self._good_output(client, number, speculation=Speculation(enabled=False)) for number in range(6)
            ]
            await client.drafters.attach(self._drafter, _GOOD)
            good = [asyncio.create_task(self._good_client(client, number, expected)) for number in range(2)]
            try:
                attacks = [self._draft, self._draft, self._generate, self._unary, self._verify]
                workers = [self._repeat(attack, messages) for attack in attacks for _ in range(_IN_PARALLEL)]
                workers.append(self._repeat(lambda rng: self._with_drafter(client, rng), messages))
                await asyncio.gather(*workers)
            finally:
                self._stop.set()
                await asyncio.wait(good)
            for task in good:
                task.result()
            await self._look(client)
        return self.findings

    def _child(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _fault(self, what: str) -> None:
        self.findings.faults.append(what)

    # Well-behaved callers that must not notice anything

    async def _good_output(self, client: AsyncClient, number: int, speculation: Speculation) -> tuple[int, ...]:
        rng = random.Random(number)
        prompt = [rng.randrange(self._vocab_size) for _ in range(8)]
        options = _SAMPLINGS[number % len(_SAMPLINGS)]
        generation = await client.generate(
            prompt, max_tokens=16, seed=number, ignore_eos=True, speculation=speculation, **options
        )
        return tuple(generation.token_ids)

    async def _good_client(self, client: AsyncClient, number: int, expected: Sequence[tuple[int, ...]]) -> None:
        while not self._stop.is_set():
            number = (number + 1) % len(expected)
            try:
                output = await self._good_output(client, number, Speculation(drafter=_GOOD))
            except DraftwireError as error:
                self._fault(f"a good request failed: {error}")
                continue
            self.findings.good_requests += 1
            if output != expected[number]:
                self._fault(f"a good request gave other tokens than plain decoding: {output}, not {expected[number]}")

    # The attacks

    async def _repeat(self, attack: Callable[[random.Random], Awaitable[None]], messages: int) -> None:
        rng = self._child()
        while self.findings.sent.total() < messages:
            await attack(rng)
            if len(self.findings.faults) > 100:
                return

    async def _draft(self, rng: random.Random) -> None:
        """Plays a verifier towards the drafter."""
        said = fuzz_messages.verifier_conversation(rng, self._vocab_size)
        await self._converse("DrafterService/Draft", self._spoilt(said, rng, "verifier"), rng)

    async def _verify(self, rng: random.Random) -> None:
        """Plays a caller with its own drafter towards the verifier."""
        said = fuzz_messages.verify_conversation(rng, self._vocab_size)
        await self._converse("VerifierService/Verify", self._spoilt(said, rng, "edge"), rng)

    async def _generate(self, rng: random.Random) -> None:
        """Plays a client of the verifier."""
        [(data, how)] = self._spoilt([fuzz_messages.generate_request(rng, self._vocab_size)], rng, "client")
        async with self._channel("VerifierService/Generate") as channel:
            call = channel.unary_stream("/draftwire.v1.VerifierService/Generate")(data)
            self.findings.sent[how] += 1
            await self._read(call, "VerifierService/Generate", rng.randrange(1, 16))

    async def _unary(self, rng: random.Random) -> None:
        """Makes a call with one response."""
        method, make = rng.choice(list(fuzz_messages.UNARY.items()))
        [(data, how)] = self._spoilt([make(rng)], rng, "unary")
        async with self._channel(method) as channel:
            call = channel.unary_unary(f"/draftwire.v1.{method}")(data)
            self.findings.sent[how] += 1
            await self._code(call, method)

    async def _with_drafter(self, client: AsyncClient, rng: random.Random) -> None:
        """Plays a drafter that the verifier attaches and gives requests, which must not be affected. Each time it is
        another one, since an address that broke the protocol is left alone for a while."""
        async with FuzzingDrafter(rng, self._vocab_size, self.findings.sent) as drafter:
            await self._attack_as(drafter, client)

    async def _attack_as(self, drafter: FuzzingDrafter, client: AsyncClient) -> None:
        self._attached += 1
        name = f"{fuzz_messages.FUZZED} drafter {self._attached}"
        try:
            await client.drafters.attach(drafter.address, name)
        except DraftwireError:
            return  # it did not even complete the handshake
        requests = []
        for number in range(3):
            attacked = self._good_output(client, number, Speculation(drafter=name))
            requests.append(asyncio.create_task(attacked))
        for number, request in enumerate(requests):
            try:
                tokens = await request
            except DraftwireError as error:
                self._fault(f"a request with a fuzzing drafter failed: {error}")
                continue
            if tokens != await self._good_output(client, number, Speculation(enabled=False)):
                self._fault("a request with a fuzzing drafter gave other tokens than plain decoding")
        try:
            await client.drafters.detach(name)
        except DraftwireError as error:
            self._fault(f"a fuzzing drafter cannot be detached: {error}")

    def _spoilt(self, said: Sequence[Any], rng: random.Random, who: str) -> list[tuple[bytes, str]]:
        """Returns a conversation corrupted in one way, with a name for the count."""
        level = rng.random()
        if level < 0.2:
            return [(mutate_bytes(each.SerializeToString(), rng), f"{who}: bytes") for each in said]
        if len(said) > 1:
            said = [said[0], *mutate_order(said[1:], rng)] if rng.random() < 0.9 else mutate_order(said, rng)
        faults = rng.choice((0.0, 0.05, 0.3, 1.0)) if len(said) > 1 else 1.0
        # A corrupted handshake ends a conversation before it has begun, so only some have one.
        spared = said[:1] if len(said) > 1 and rng.random() < 0.9 else []
        return [
            (
                (each if each in spared or rng.random() > faults else mutate(each, rng)).SerializeToString(),
                f"{who}: fields",
            )
            for each in said
        ]

    def _channel(self, method: str) -> Any:
        service = method.partition("Service/")[0]
        return grpc.aio.insecure_channel(self._addresses[service], options=[("grpc.max_send_message_length", -1)])

    async def _converse(self, method: str, said: Sequence[tuple[bytes, str]], rng: random.Random) -> None:
        """Sends all messages on one stream, and reads responses to the end or until there are enough."""
        async with self._channel(method) as channel:
            call = channel.stream_stream(f"/draftwire.v1.{method}")()

            async def say() -> None:
                try:
                    for data, how in said:
                        await call.write(data)
                        self.findings.sent[how] += 1
                    await call.done_writing()
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                    return  # the peer has ended the stream, which it may

            saying = asyncio.create_task(say())
            try:
                await self._read(call, method, rng.choice((10, 10_000)))
            finally:
                saying.cancel()
                await asyncio.wait({saying})

    async def _read(self, call: Any, method: str, most: int) -> None:
        """Reads up to `most` messages, then cancels."""
        try:
            while most > 0:
                async with asyncio.timeout(SECONDS):
                    answer = await call.read()
                if answer is grpc.aio.EOF:
                    break
                most -= 1
            else:
                call.cancel()
        except TimeoutError:
            self._fault(f"{method} gives neither an answer nor an end within {SECONDS:g} s")
            call.cancel()
            return
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass  # its outcome is checked below
        await self._code(call, method)

    async def _code(self, call: Any, method: str) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                code = await call.code()
        except TimeoutError:
            self._fault(f"{method} does not end within {SECONDS:g} s")
            call.cancel()
            return
        details = await call.details()
        if details == _CUT:
            self.findings.codes[f"{method}, ended while more was said"] += 1
            return
        self.findings.codes[f"{method} {code.name}"] += 1
        if code not in _TYPED:
            self._fault(f"{method} ended with {code.name}: {details}")

    # Final checks

    async def _look(self, client: AsyncClient) -> None:
        """Checks that both services are healthy and hold nothing."""
        for address in (self._verifier, self._drafter):
            async with grpc.aio.insecure_channel(address) as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=SECONDS
                )
                if answer.status != health_pb2.HealthCheckResponse.SERVING:
                    self._fault(f"{address} is not healthy")
        for rollout in [each for each in await client.drafters.rollouts() if each.state == "running"]:
            await client.drafters.withdraw(rollout.new.name)
        for drafter in await client.drafters.list():
            if drafter.name != _GOOD:
                await client.drafters.detach(drafter.name)
        deadline = time.monotonic() + SECONDS
        while (held := await self._held(client)) and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)
        if held:
            self._fault(f"slots are left in use: {held}")

    async def _held(self, client: AsyncClient) -> str:
        engine = (await client.model_info()).engine
        held = []
        if engine.running_sequences or engine.waiting_requests or engine.used_slots:
            held.append(f"verifier: {engine}")
        async with grpc.aio.insecure_channel(self._drafter) as channel:
            stub: Any = DrafterServiceStub(channel)
            told = await stub.GetModelInfo(DrafterServiceGetModelInfoRequest(), timeout=SECONDS)
        if told.status.open_sequences or told.status.used_slots:
            held.append(f"drafter: {told.status.open_sequences} sequences, {told.status.used_slots} slots")
        return "; ".join(held)


async def attack(seed: int, messages: int, services: Services, models: tuple[Path, Path]) -> Findings:
    """Starts a verifier and a drafter of these models, attacks them, and reads their logs."""
    verifier, drafter = services.verifier(models[0]), services.drafter(models[1])
    addresses = [await asyncio.to_thread(lambda s=service: s.address) for service in (verifier, drafter)]
    findings = await Fuzzer(addresses[0], addresses[1], seed).run(messages)
    for service in (verifier, drafter):
        findings.faults += [f"{service.log.name}: {line}" for line in logged_faults(service.log)]
    return findings


def main() -> None:
    """Attacks the services and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None, help="seed of everything random; printed")
    parser.add_argument("--target", type=Path, default=MODELS / "target")
    parser.add_argument("--draft", type=Path, default=MODELS / "draft")
    add_report_options(parser)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr)
    started = time.monotonic()
    with Services() as services:
        findings = asyncio.run(attack(seed, options.messages, services, (options.target, options.draft)))
    figures: dict[str, object] = {
        "seed": seed,
        "messages": findings.sent.total(),
        "by kind": dict(sorted(findings.sent.items())),
        "ends of calls": dict(sorted(findings.codes.items())),
        "seconds": round(time.monotonic() - started),
        "good requests meanwhile": findings.good_requests,
        "faults": len(findings.faults),
    }
    end_with_faults("fuzz", figures, findings.faults, options)


if __name__ == "__main__":
    main()
