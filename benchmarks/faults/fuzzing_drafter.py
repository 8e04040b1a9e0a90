"""A drafter service that answers arbitrarily: raw bytes over gRPC, most of them corrupted messages."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import grpc

from benchmarks.faults.fuzz_messages import Opened, drafter_answers, hello
from benchmarks.faults.mutations import mutate, mutate_bytes
from benchmarks.faults.raw_drafter import RawDrafter
from draftwire.v1.drafter_service_pb2 import DraftRequest, DraftResponse

_BURST = 24
"""Most messages in answer to one of the verifier's."""
_ENDINGS = (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNKNOWN)


class FuzzingDrafter(RawDrafter):
    """A drafter that serves Draft at `address`. Every conversation ends after some messages, in one of many ways."""

    def __init__(self, rng: random.Random, vocab_size: int, sent: Counter[str]) -> None:
        """sent: counter of the messages."""
        self._rng = rng
        self._vocab_size = vocab_size
        self._sent = sent
        super().__init__(self._draft)

    async def _draft(self, requests: Any, context: Any) -> None:
        """Runs one conversation."""
        rng = random.Random(self._rng.getrandbits(64))
        # The first fault that the verifier cannot ignore ends a conversation, so most have few of them.
        faults = rng.choice((0.02, 0.1, 0.5))
        raw = rng.random() < 0.1
        quota = rng.randrange(1, 400)
        greeting: DraftResponse = DraftResponse(hello=hello(self._vocab_size))
        if rng.random() < 0.1:
            greeting = mutate(greeting, rng)
        openings: dict[int, Opened] = {}
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            await self._write(context, greeting.SerializeToString(), "drafter: fields")
            async for data in requests:
                self._take(DraftRequest.FromString(data), openings)
                for answer in self._answers(rng, openings, faults):
                    await self._write(context, answer.SerializeToString(), "drafter: fields")
                    quota -= 1
                if raw and quota < 50:
                    await self._write(context, mutate_bytes(data, rng), "drafter: bytes")
                if quota <= 0:
                    break
        ending = rng.choice(_ENDINGS)
        if ending is not grpc.StatusCode.OK:
            await context.abort(ending, "enough")

    async def _write(self, context: Any, data: bytes, what: str) -> None:
        await context.write(data)
        self._sent[what] += 1

    @staticmethod
    def _take(message: DraftRequest, openings: dict[int, Opened]) -> None:
        """Follows the verifier as an honest drafter does."""
        kind = message.WhichOneof("message")
        if kind == "open":
            openings[message.open.sequence_id] = Opened(message.open.epoch, message.open.committed_length)
        elif kind == "verdicts":
            for verdict in message.verdicts.verdicts:
                if verdict.sequence_id in openings:
                    openings[verdict.sequence_id].committed_length = verdict.committed_length
        elif kind == "close":
            for sequence_id in message.close.sequence_ids:
                openings.pop(sequence_id, None)

    def _answers(self, rng: random.Random, openings: dict[int, Opened], faults: float) -> list[DraftResponse]:
        answers: list[DraftResponse] = []
        for sequence_id, opened in openings.items():
            answers += drafter_answers(rng, self._vocab_size, sequence_id, opened)
        answers = [mutate(answer, rng) if rng.random() < faults else answer for answer in answers]
        # Late or foreign messages are ignored, so there may be any number of them.
        unknown = Opened(0, 1)
        for _ in range(_BURST):
            for answer in drafter_answers(rng, self._vocab_size, rng.randrange(1000, 2000), unknown):
                answers.append(mutate(answer, rng) if rng.random() < faults else answer)
        rng.shuffle(answers[len(answers) // 2 :])
        return answers
