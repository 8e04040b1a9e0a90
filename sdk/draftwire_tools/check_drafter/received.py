"""The messages of a stream: checks every message of the drafter."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import grpc

from draftwire.errors import DOMAIN, ErrorReason, InvalidArgumentError, from_status
from draftwire.v1 import drafter_service_pb2 as drafter
from draftwire.v1 import proposal_pb2
from draftwire_tools.check_drafter.findings import Findings
from draftwire_tools.check_drafter.mirror import Mirror


@dataclass(frozen=True, slots=True)
class Fault:
    """A SequenceError, read."""

    reason: str
    fields: tuple[str, ...]
    text: str


class Received:
    """Records what came, and the rules that it breaks."""

    def __init__(self, findings: Findings) -> None:
        """Starts with nothing received."""
        self.mirrors: dict[int, Mirror] = {}
        """The latest opening of each sequence."""
        self.offered: set[tuple[int, int]] = set()
        """Sequence and epoch of openings that are not mirrored: they are to be refused or ignored."""
        self.pings: list[int] = []
        """Numbers of the pings that were sent."""
        self.faults: dict[tuple[int, int], list[Fault]] = {}
        """SequenceErrors by sequence and epoch."""
        self.confirmed: list[tuple[int, int]] = []
        """Sequence and epoch of each SequenceOpened."""
        self.pongs: list[int] = []
        """Numbers of the pongs."""
        self._findings = findings
        self._began = time.monotonic()

    def take(self, message: drafter.DraftResponse) -> None:
        """Takes the drafter's next message."""
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
        if key in self.offered:
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
        if (proposal.sequence_id, proposal.epoch) in self.offered:
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
        if self.pongs.count(number) > self.pings.count(number):
            self._findings.failed("ping.asked", f"a pong {number} for {self.pings.count(number)} such pings")
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
