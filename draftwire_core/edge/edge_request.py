"""One request on its Verify stream, followed by the local drafter. Never blocks or sends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from draftwire.v1 import proposal_pb2
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.verdict_pb2 import Verdict
from draftwire_core.edge.local_drafter import LocalDrafter
from draftwire_core.engine.tree.proposal import Proposal

log = logging.getLogger("draftwire.edge")


@dataclass(frozen=True, slots=True)
class EncodedStart:
    """The first message of a Verify stream, encoded, which for a large request is not done on an event loop."""

    data: bytes
    """The encoded message."""

    @classmethod
    def of(cls, request: pb.GenerateRequest, drafter: LocalDrafter) -> Self:
        """Returns the message that starts a request."""
        start = pb.VerifyStart(request=request, tokenizer_sha256=drafter.tokenizer_sha256)
        return cls(pb.VerifyRequest(start=start).SerializeToString())


def encoded(message: pb.VerifyRequest | EncodedStart) -> bytes:
    """Returns a message of a Verify stream as it is sent."""
    return message.data if isinstance(message, EncodedStart) else message.SerializeToString()


class EdgeRequest:
    """Follows the verifier's messages with the local drafter, and passes the request's events on."""

    def __init__(self, drafter: LocalDrafter, send: Callable[[pb.VerifyRequest], None]):
        """Prepares the request. ``send`` gets messages for the verifier, in the drafter's thread; it must not raise."""
        self._drafter = drafter
        self._send = send
        self._key: int | None = None
        self._max_length = 0

    def take(self, message: pb.VerifyResponse) -> pb.GenerateResponse | None:
        """Reads a message; returns its event, if it has one."""
        kind = message.WhichOneof("message")
        if kind == "event":
            if message.event.HasField("finished"):
                self.close()
            return message.event
        if kind == "opened":
            self._open(message.opened)
        elif kind == "verdict":
            self._follow(message.verdict)
        elif kind == "refused":
            log.warning(
                "local drafts refused by the verifier; the request continues without them: %s", message.refused.message
            )
            self.close()
        return None

    def close(self) -> None:
        """Stops drafting. Calling it again does nothing."""
        key, self._key = self._key, None
        if key is not None:
            self._drafter.thread.close(key)

    def _open(self, opened: pb.VerifyOpened) -> None:
        spec = self._drafter.spec(opened)
        if spec is not None:
            self._max_length = spec.max_length
            self._key = self._drafter.thread.open(spec, self._propose)
        elif opened.max_tree_nodes:
            log.info("request not drafted: its %d tokens do not fit the draft model's context", len(opened.token_ids))

    def _follow(self, verdict: Verdict) -> None:
        if self._key is None:
            return
        tokens = list(verdict.token_ids)
        if verdict.committed_length > self._max_length or not self._drafter.knows(tokens):
            self.close()
        else:
            self._drafter.thread.commit(self._key, verdict.committed_length, tokens)

    def _propose(self, proposal: Proposal) -> None:
        self._send(
            pb.VerifyRequest(
                proposal=proposal_pb2.Proposal(
                    committed_length=proposal.committed_length,
                    first_node_id=proposal.first_node_id,
                    token_ids=proposal.token_ids,
                    parent_ids=proposal.parent_ids,
                    log_probs=proposal.log_probs,
                )
            )
        )
