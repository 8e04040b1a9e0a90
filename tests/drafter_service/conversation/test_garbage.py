"""The drafter survives everything that a verifier may send, and other streams are unaffected."""

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from draftwire.v1 import drafter_service_pb2, model_info_pb2, sampling_pb2, verdict_pb2
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.drafter.verifier_side import PATIENCE, Request
from tests.harness.models.tiny_checkpoint import CONTEXT, VOCABULARY
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services

MESSAGES = int(os.environ.get("DRAFTWIRE_FUZZ_MESSAGES", "3000"))
PROMPT = [5, 9, 14, 23, 42, 7]
HELLO = Request(hello=model_info_pb2.PeerInfo(protocol_revision=1))


class Garbage:
    """Generates messages that are nearly right, wrong, contradictory, huge, or have random bytes changed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def number(self, usual: int) -> int:
        """Returns a mostly small number, sometimes an extreme one."""
        rng = self._rng
        if rng.random() < 0.9:
            return rng.randrange(usual + 1)
        return rng.choice([0, 1, VOCABULARY, CONTEXT, CONTEXT + 1, 2**31 - 1, 2**31, 2**32 - 1])

    def tokens(self) -> list[int]:
        length = self._rng.choice([0, 1, 1, 2, 5, 20, 300])
        return [self.number(VOCABULARY - 1) if self._rng.random() < 0.05 else 5 for _ in range(length)]

    def sampling(self) -> Any:
        rng = self._rng
        wild = [0.0, 1.0, 0.5, -1.0, 1e-38, 3e38, float("nan"), float("inf"), float("-inf")]
        fields: dict[str, Any] = {"seed": rng.getrandbits(64)}
        for name in ("temperature", "top_p", "min_p"):
            if rng.random() < 0.4:
                fields[name] = rng.choice(wild) if rng.random() < 0.3 else rng.random()
        if rng.random() < 0.3:
            fields["top_k"] = self.number(50)
        if rng.random() < 0.05:
            del fields["seed"]
        return sampling_pb2.SamplingParams(**fields)

    def open(self) -> Any:
        tokens = self.tokens()
        return drafter_service_pb2.OpenSequence(
            sequence_id=self.number(5),
            epoch=self.number(30),
            sampling=self.sampling(),
            committed_length=len(tokens) if self._rng.random() < 0.7 else self.number(40),
            offset=0 if self._rng.random() < 0.8 else self.number(10),
            token_ids=tokens,
            max_tree_nodes=self.number(20),
            max_length=len(tokens) + self.number(40) & 0xFFFFFFFF,
        )

    def verdict(self) -> Any:
        tokens = self.tokens()
        return verdict_pb2.Verdict(
            sequence_id=self.number(5),
            epoch=self.number(30),
            committed_length=self.number(40),
            token_ids=tokens,
            accepted=self.number(5),
        )

    def message(self) -> Any:
        rng = self._rng
        kind = rng.random()
        if kind < 0.45:
            return Request(open=self.open())
        if kind < 0.75:
            return Request(
                verdicts=verdict_pb2.VerdictBatch(verdicts=[self.verdict() for _ in range(rng.randrange(4))])
            )
        if kind < 0.85:
            return Request(
                close=drafter_service_pb2.CloseSequences(sequence_ids=[self.number(5) for _ in range(rng.randrange(4))])
            )
        if kind < 0.92:
            return Request(
                sequence_error=drafter_service_pb2.SequenceError(sequence_id=self.number(5), epoch=self.number(30))
            )
        if kind < 0.98:
            return Request(ping=drafter_service_pb2.Ping(number=rng.getrandbits(64)))
        return rng.choice([HELLO, Request()])

    def mutated(self) -> Any:
        """Returns a message; a third of the time some of its bytes are changed, if it can still be decoded."""
        message = self.message()
        if self._rng.random() < 0.67:
            return message
        raw = bytearray(message.SerializeToString())
        for _ in range(self._rng.randrange(1, 4)):
            if raw:
                raw[self._rng.randrange(len(raw))] = self._rng.randrange(256)
        try:
            return Request.FromString(bytes(raw))
        except DecodeError:  # the transport would end the stream; see test_interceptors.py
            return message


async def throw(drafter: InProcessDrafter, seed: int, messages: int) -> int:
    """Sends garbage, reconnecting whenever the drafter ends the stream; returns how often it did."""
    garbage, sent, ends = Garbage(seed), 0, 0
    while sent < messages:
        async with in_process_call(drafter.servicer.converse) as stream:

            async def read(stream: Any = stream) -> None:
                async for _ in stream:
                    pass

            await stream.write(HELLO)
            reading = asyncio.create_task(read())
            try:
                while sent < messages:
                    sent += 1
                    async with asyncio.timeout(PATIENCE):
                        await stream.write(garbage.mutated())
                await stream.close()
                async with asyncio.timeout(PATIENCE):
                    await reading
            except StreamBroken:
                ends += 1
                async with asyncio.timeout(PATIENCE):
                    await asyncio.wait({reading})
                    assert isinstance(reading.exception(), StreamBroken)
                    assert reading.exception().code.name != "INTERNAL"  # type: ignore[union-attr]
            finally:
                reading.cancel()
    return ends


async def orderly(drafter: InProcessDrafter, steps: int) -> list[list[int]]:
    """Follows its drafter like a real verifier; returns the first children that were proposed, step by step."""
    found = []
    async with drafter.connected() as verifier:
        await verifier.open(1, PROMPT, max_length=len(PROMPT) + steps + 5)
        for _ in range(steps):
            await verifier.until(lambda: verifier.mirrors[1].tree.root.children)
            children = list(verifier.mirrors[1].tree.root.children)
            found.append(children[:1])
            await verifier.commit({1: children[:1]})
        await verifier.end()
        assert verifier.errors == []
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_garbage_disturbs_nobody(services: Services, checkpoint: Path, seed: int) -> None:
    async with services.in_process_drafter(checkpoint, max_sequences=4) as drafter:
        alone = await orderly(drafter, 40)
        throwing = asyncio.create_task(throw(drafter, seed, MESSAGES // 3))
        while not throwing.done():
            assert await orderly(drafter, 40) == alone
        assert await throwing > 0
        status = await drafter.status()
        assert (status.streams, status.open_sequences, status.used_slots) == (0, 0, 0)
