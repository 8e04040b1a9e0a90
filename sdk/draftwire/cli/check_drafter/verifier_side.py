"""The verifier's side of a stream: sends what a trial asks for, and checks every message that comes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2

from draftwire.cli.check_drafter.draft_stream import DraftStream
from draftwire.cli.check_drafter.findings import Breach, Findings
from draftwire.cli.check_drafter.mirror import Mirror
from draftwire.errors import DOMAIN, ErrorReason, InvalidArgumentError, from_status
from draftwire.v1 import drafter_service_pb2 as drafter
from draftwire.v1 import model_info_pb2, proposal_pb2, sampling_pb2, verdict_pb2

MAX_LENGTH = 200
"""Default number of tokens after those of an opening."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the check waits."""

    answer: float
    """For what has to come, in seconds."""
    draft: float
    """For nodes, which a drafter need not send, in seconds."""
    quiet: float
    """Without a message until the drafter counts as done, in seconds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A SequenceError, read."""

    reason: str
    fields: tuple[str, ...]
    text: str


class VerifierSide:
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
    ) -> None:
        """hello: the drafter's. vocab_size: number of token ids that both sides have; 0 if unknown. pings: whether the
        drafter answers pings.
        """
        self.stream = stream
        self.hello = hello
        self.mirrors: dict[int, Mirror] = {}
        """The latest opening of each sequence."""
        self.faults: dict[tuple[int, int], list[Fault]] = {}
        """SequenceErrors by sequence and epoch."""
        self.confirmed: list[tuple[int, int]] = []
        """Sequence and epoch of each SequenceOpened."""
        self.pongs: list[int] = []
        """Numbers of the pongs."""
        self._offered: set[tuple[int, int]] = set()
        self._findings = findings
        self._patience = patience
        self._vocab_size = vocab_size
        self._answers_pings = pings
        self._pings: list[int] = []
        self._began = time.monotonic()

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
        self._offered.discard((sequence_id, epoch))
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
        self._offered.add((message.sequence_id, message.epoch))
        await self.send(open=message)

    async def send_chunks(self, message: drafter.OpenSequence, size: int, begin: int, end: int) -> None:
        """Sends the tokens of an opening from one index to another, in chunks. One that is not mirrored counts as
        offered.
        """
        mirror = self.mirrors.get(message.sequence_id)
        if mirror is None or mirror.epoch != message.epoch:
            self._offered.add((message.sequence_id, message.epoch))
        tokens = list(message.token_ids)
        for offset in range(begin, end, size):
            part = drafter.OpenSequence()
            part.CopyFrom(message)
            part.offset = offset
            part.token_ids[:] = tokens[offset : min(offset + size, end)]
            await self.send(open=part)

    async def commit(self, commits: Mapping[int, Sequence[int]], requested: int | None = None) -> None:
        """Sends verdicts in one batch, and mirrors them."""
        verdicts = []
        for sequence_id, tokens in commits.items():
            mirror = self.mirrors[sequence_id]
            mirror.commit(tokens, requested)
            verdicts.append(verdict(sequence_id, mirror.epoch, len(mirror.tokens), tokens))
        await self.send(verdicts=verdict_pb2.VerdictBatch(verdicts=verdicts, max_tree_nodes=requested))

    async def close(self, *sequence_ids: int) -> None:
        """Closes sequences."""
        for sequence_id in sequence_ids:
            if sequence_id in self.mirrors:
                self.mirrors[sequence_id].closed = True
        await self.send(close=drafter.CloseSequences(sequence_ids=sequence_ids))

    async def ping(self, number: int) -> None:
        """Sends a ping."""
        self._pings.append(number)
        await self.send(ping=drafter.Ping(number=number))

    async def give_up(self, sequence_id: int) -> None:
        """Reports an error of a sequence to the drafter, as a verifier does that refuses a proposal."""
        mirror = self.mirrors[sequence_id]
        mirror.closed = True
        status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="tried by draftwire check-drafter")
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=ErrorReason.MALFORMED_PROPOSAL, domain=DOMAIN))
        error = drafter.SequenceError(sequence_id=sequence_id, epoch=mirror.epoch, status=status)
        await self.send(sequence_error=error)

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

    async def settle(self) -> None:
        """Reads until the drafter has had time to read all that was sent, and has no more to say."""
        if self._answers_pings:
            number = 1000 + len(self._pings)
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

    # What the drafter sends.

    async def _step(self, seconds: float) -> None:
        message = await self.stream.read(seconds)
        kind = message.WhichOneof("message")
        if kind == "opened":
            self._on_opened(message.opened)
        elif kind == "proposals":
            self._on_proposals(message.proposals)
        elif kind == "sequence_error":
            self._on_error(message.sequence_error)
        elif kind == "pong":
            self._on_pong(message.pong.number)
        elif kind == "hello":
            self._findings.failed("handshake.answer", "a second hello from the drafter")

    def _on_opened(self, opened: drafter.SequenceOpened) -> None:
        key = (opened.sequence_id, opened.epoch)
        again = key in self.confirmed
        self.confirmed.append(key)
        if key in self._offered:
            return
        mirror = self.mirrors.get(opened.sequence_id)
        if mirror is None or opened.epoch > mirror.epoch:
            self._findings.failed("opening.first", f"SequenceOpened for {_named(opened)}, which was never opened")
        elif opened.epoch == mirror.epoch:
            if again:
                self._findings.failed("opening.first", f"SequenceOpened twice for {_named(opened)}")
            self._findings.passed("opening.first")
            mirror.opened = True

    def _on_proposals(self, batch: proposal_pb2.ProposalBatch) -> None:
        ids = [proposal.sequence_id for proposal in batch.proposals]
        if not ids:
            self._findings.failed("proposal.lists", "a batch without proposals")
        if len(set(ids)) < len(ids):
            self._findings.failed("proposal.one", f"two proposals of sequence {max(ids, key=ids.count)} in one batch")
        self._findings.passed("proposal.one")
        elapsed = time.monotonic() - self._began
        if not 0 < batch.step_seconds < math.inf:
            self._findings.failed("proposal.step_seconds", f"step_seconds is {batch.step_seconds:g}")
        elif batch.step_seconds > elapsed:
            why = f"step_seconds is {batch.step_seconds:g}, on a stream that is {elapsed:.3f} seconds old"
            self._findings.failed("proposal.step_seconds", why)
        self._findings.passed("proposal.step_seconds")
        for proposal in batch.proposals:
            self._on_proposal(proposal)

    def _on_proposal(self, proposal: proposal_pb2.Proposal) -> None:
        if (proposal.sequence_id, proposal.epoch) in self._offered:
            return
        mirror = self.mirrors.get(proposal.sequence_id)
        if mirror is None or proposal.epoch > mirror.epoch:
            why = f"a proposal for {_named(proposal)}, which was never opened"
            self._findings.failed("proposal.sequence", why)
            return
        if proposal.epoch < mirror.epoch:
            if mirror.opened:
                why = f"a proposal for {_named(proposal)} after SequenceOpened for epoch {mirror.epoch}"
                self._findings.failed("proposal.sequence", why)
            return
        if not mirror.opened:
            self._findings.failed("opening.first", f"nodes of {_named(proposal)} before SequenceOpened")
        if mirror.failed or mirror.gone:
            how = "failed" if mirror.failed else "been closed"
            self._findings.failed("proposal.sequence", f"nodes of {_named(proposal)} after it had {how}")
        for rule, why in mirror.take(proposal):
            if rule == "credit.smaller":
                self._findings.passed(rule, f"{why}; not forbidden, but read in vain")
            else:
                self._findings.failed(rule, why)
        for rule in _SHOWN:
            self._findings.passed(rule)
        if mirror.draws:
            self._findings.passed("draws.reported")
        if proposal.committed_length == len(mirror.tokens) > mirror.lengths[0]:
            self._findings.passed("verdict.followed")
        if mirror.requested.get(proposal.committed_length) is not None:
            self._findings.passed("credit.smaller")

    def _on_error(self, error: drafter.SequenceError) -> None:
        found = from_status(error.status)
        fault = Fault(str(found.reason or ""), found.fields, f"{found.code.name} {found.reason}: {found.message}")
        self.faults.setdefault((error.sequence_id, error.epoch), []).append(fault)
        mirror = self.mirrors.get(error.sequence_id)
        if mirror is not None and mirror.epoch == error.epoch:
            mirror.failed = True
        if found.code in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN):
            self._findings.failed("error.form", f"{_named(error)}: the status code {error.status.code}")
        elif found.reason not in set(ErrorReason):
            why = f"{_named(error)}: no ErrorInfo with the domain {DOMAIN} and a published reason ({fault.text})"
            self._findings.failed("error.form", why)
        elif isinstance(found, InvalidArgumentError) and not found.fields:
            self._findings.failed("error.form", f"{_named(error)}: no BadRequest that names a field ({fault.text})")
        self._findings.passed("error.form")

    def _on_pong(self, number: int) -> None:
        self.pongs.append(number)
        if self.pongs.count(number) > self._pings.count(number):
            self._findings.failed("ping.asked", f"a pong {number} for {self._pings.count(number)} such pings")
        self._findings.passed("ping.asked")


_SHOWN = (
    "opening.first",
    "proposal.sequence",
    "proposal.lists",
    "proposal.ids",
    "proposal.parents",
    "proposal.tokens",
    "proposal.log_probs",
    "proposal.length",
    "proposal.max_length",
    "proposal.distributions",
    "credit.live",
    "verdict.tree",
)
"""Rules that every proposal shows to be kept, unless it breaks them."""


def _named(message: Any) -> str:
    return f"sequence {message.sequence_id}, epoch {message.epoch}"


def opening(sequence_id: int, tokens: Sequence[int], *, epoch: int = 1, **changes: Any) -> drafter.OpenSequence:
    """Returns an OpenSequence with all tokens in one chunk."""
    fields: dict[str, Any] = {
        "sampling": sampling_pb2.SamplingParams(temperature=0.0, seed=7),
        "committed_length": len(tokens),
        "max_length": len(tokens) + MAX_LENGTH,
        "max_tree_nodes": 16,
    }
    return drafter.OpenSequence(sequence_id=sequence_id, epoch=epoch, token_ids=tokens, **(fields | changes))


def verdict(sequence_id: int, epoch: int, committed_length: int, tokens: Sequence[int]) -> verdict_pb2.Verdict:
    """Returns a verdict without a hidden state."""
    return verdict_pb2.Verdict(
        sequence_id=sequence_id, epoch=epoch, committed_length=committed_length, token_ids=tokens
    )
