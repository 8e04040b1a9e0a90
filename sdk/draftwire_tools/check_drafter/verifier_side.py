"""The verifier's side of a stream: sends what a trial asks for, and waits for what it needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwire.v1 import drafter_service_pb2 as drafter
from draftwire.v1 import model_info_pb2, verdict_pb2
from draftwire_tools.check_drafter.draft_stream import DraftStream
from draftwire_tools.check_drafter.features import Features
from draftwire_tools.check_drafter.findings import Breach, Findings
from draftwire_tools.check_drafter.messages import given_up, opening, token_features, verdict
from draftwire_tools.check_drafter.mirror import Mirror
from draftwire_tools.check_drafter.received import Fault, Received


@dataclass(frozen=True, slots=True)
class Patience:
    """Times to wait."""

    answer: float
    """For what has to come."""
    draft: float
    """For nodes, which a drafter need not send."""
    quiet: float
    """Without a message until the drafter counts as done."""


class VerifierSide(Received):
    """One stream after its handshake. Reading records the rules that messages break; a trial waits for what it needs.

    All waiting methods raise TimeoutError and StreamEnded as `DraftStream.read` does.
    """

    def __init__(
        self,
        stream: DraftStream,
        findings: Findings,
        patience: Patience,
        hello: model_info_pb2.PeerInfo,
        vocab_size: int,
        *,
        pings: bool,
        features: Features | None = None,
    ) -> None:
        """hello: the drafter's. vocab_size: number of token ids that both sides have; 0 if unknown. pings: whether the
        drafter answers pings. features: what makes those that the drafter reads; None if it reads none.
        """
        super().__init__(findings)
        self.stream = stream
        self.hello = hello
        self._patience = patience
        self._vocab_size = vocab_size
        self._answers_pings = pings
        self._features = features
        self.by_itself = True
        """Whether openings and verdicts of mirrors are followed by the features that a verifier then has."""

    # What the verifier sends.

    async def send(self, **message: Any) -> None:
        """Sends a message, given as its field of DraftRequest."""
        await self.stream.write(drafter.DraftRequest(**message))

    async def open(
        self, sequence_id: int, tokens: Sequence[int], *, epoch: int = 1, chunk: int = 0, until: int = 0, **changes: Any
    ) -> Mirror:
        """Sends an opening, in chunks of so many tokens, and mirrors it. ``until``: tokens to send now; 0 sends all."""
        message = opening(sequence_id, tokens, epoch=epoch, **changes)
        before = self.mirrors.get(sequence_id)
        if before is not None:
            before.closed = True
        limit = self.hello.limits.max_tree_nodes
        self.offered.discard((sequence_id, epoch))
        self.mirrors[sequence_id] = mirror = Mirror(
            sequence_id,
            epoch,
            list(tokens),
            min(message.max_tree_nodes, limit) if limit else message.max_tree_nodes,
            message.max_length,
            self._vocab_size,
            draws=bool(message.acceptance),
        )
        await self.send_chunks(message, chunk or len(tokens), 0, until or len(tokens))
        return mirror

    async def offer(self, message: drafter.OpenSequence) -> None:
        """Sends an opening that is to be refused or ignored, and that is not mirrored."""
        self.offered.add((message.sequence_id, message.epoch))
        await self.send(open=message)

    async def send_chunks(self, message: drafter.OpenSequence, size: int, begin: int, end: int) -> None:
        """Sends the tokens of an opening from one index to another, in chunks. One that is not mirrored counts as
        offered.
        """
        mirror = self.mirrors.get(message.sequence_id)
        if mirror is None or mirror.epoch != message.epoch:
            self.offered.add((message.sequence_id, message.epoch))
        tokens = list(message.token_ids)
        for offset in range(begin, end, size):
            part = drafter.OpenSequence()
            part.CopyFrom(message)
            part.offset = offset
            part.token_ids[:] = tokens[offset : min(offset + size, end)]
            await self.send(open=part)
        if end == len(tokens) and mirror is not None and mirror.epoch == message.epoch and self.by_itself:
            await self.send_features(mirror.sequence_id, 0, len(tokens) - 1)

    async def commit(self, commits: Mapping[int, Sequence[int]], requested: int | None = None) -> None:
        """Sends verdicts in one batch, and mirrors them."""
        verdicts = []
        for sequence_id, tokens in commits.items():
            mirror = self.mirrors[sequence_id]
            mirror.commit(tokens, requested)
            verdicts.append(verdict(sequence_id, mirror.epoch, len(mirror.tokens), tokens))
        await self.send(verdicts=verdict_pb2.VerdictBatch(verdicts=verdicts, max_tree_nodes=requested))
        for sequence_id, tokens in commits.items() if self.by_itself else ():
            last = len(self.mirrors[sequence_id].tokens) - 1  # whose own is known only after the next step
            await self.send_features(sequence_id, last - len(tokens), last)

    async def send_features(self, sequence_id: int, begin: int, end: int) -> None:
        """Sends the features of some positions of an opening, if the drafter reads any."""
        if self._features is not None:
            for first, values in self._features.parts(begin, end):
                await self.send_values(sequence_id, self.mirrors[sequence_id].epoch, first, values)

    async def send_values(self, sequence_id: int, epoch: int, first: int, values: bytes) -> None:
        """Sends a message of features."""
        await self.send(features=token_features(sequence_id, epoch, first, values))

    async def close(self, *sequence_ids: int) -> None:
        """Closes sequences."""
        for sequence_id in sequence_ids:
            if sequence_id in self.mirrors:
                self.mirrors[sequence_id].closed = True
        await self.send(close=drafter.CloseSequences(sequence_ids=sequence_ids))

    async def ping(self, number: int) -> None:
        """Sends a ping."""
        self.pings.append(number)
        await self.send(ping=drafter.Ping(number=number))

    async def give_up(self, sequence_id: int) -> None:
        """Reports an error of a sequence to the drafter, as a verifier does that refuses a proposal."""
        mirror = self.mirrors[sequence_id]
        mirror.closed = True
        await self.send(sequence_error=given_up(sequence_id, mirror.epoch))

    # What the verifier waits for.

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Reads until the condition holds.

        Raises:
            Breach: it does not hold in time; ``what`` names what is missing.
        """
        if not await self.reads(condition, self._patience.answer):
            raise Breach(f"no {what} within {self._patience.answer:g} seconds")

    async def reads(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Reads until the condition holds. Returns whether it did in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            try:
                await self._step(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return False
        return True

    async def opened(self, sequence_id: int) -> None:
        """Waits for SequenceOpened.

        Raises:
            Breach: it does not come.
        """
        mirror = self.mirrors[sequence_id]
        await self.until(lambda: mirror.opened or mirror.failed, f"SequenceOpened for sequence {sequence_id}")
        if not mirror.opened:
            raise Breach(f"a correct opening was refused: {self.fault(sequence_id).text}")

    async def nodes(self, sequence_id: int) -> bool:
        """Waits for a proposal of a sequence's present length. Returns whether one came: a drafter may be silent."""
        mirror = self.mirrors[sequence_id]
        before = mirror.proposals
        return await self.reads(
            lambda: mirror.proposals > before and mirror.known_length == len(mirror.tokens), self._patience.draft
        )

    async def listen(self) -> None:
        """Reads for a while and writes nothing: the status of a stream that ends during a write is lost."""
        await self.reads(lambda: False, self._patience.quiet)

    async def settle(self) -> None:
        """Reads until the drafter has had time to read all that was sent, and has no more to say."""
        if self._answers_pings:
            number = 1000 + len(self.pings)
            closed = [mirror for mirror in self.mirrors.values() if mirror.closed]
            await self.ping(number)
            await self.until(lambda: number in self.pongs, f"pong {number}")
            for mirror in closed:
                mirror.gone = True
        deadline = time.monotonic() + self._patience.answer
        while await self._any_message():
            if time.monotonic() > deadline:
                raise Breach(f"still sends after {self._patience.answer:g} seconds without a message to it")
        for mirror in self.mirrors.values():
            mirror.settle()

    async def _any_message(self) -> bool:
        try:
            # A pong has come after all else that the drafter had to say, but for the rest of its last step.
            await self._step(self._patience.quiet / 4 if self._answers_pings else self._patience.quiet)
        except TimeoutError:
            return False
        return True

    async def refusal(self, sequence_id: int, epoch: int = 1) -> Fault | None:
        """Waits for the answer to an opening. Returns its error, or None if it is confirmed.

        Raises:
            Breach: there is no answer.
        """
        key = (sequence_id, epoch)
        await self.until(lambda: key in self.faults or key in self.confirmed, "answer to an opening")
        return self.fault(*key) if key in self.faults else None

    async def error(self, sequence_id: int, epoch: int = 1) -> Fault:
        """Waits for a sequence's error.

        Raises:
            Breach: it does not come, or the opening is confirmed instead.
        """
        await self.until(lambda: self.faults.get((sequence_id, epoch)), "SequenceError")
        return self.fault(sequence_id, epoch)

    def fault(self, sequence_id: int, epoch: int = 1) -> Fault:
        """Returns the last error of an opening."""
        return self.faults[sequence_id, epoch][-1]

    async def _step(self, seconds: float) -> None:
        self.take(await self.stream.read(seconds))
