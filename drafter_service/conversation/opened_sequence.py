"""A sequence that a verifier has opened, and its key."""

from dataclasses import dataclass
from typing import NamedTuple

from draftwire.v1.trace_context_pb2 import TraceContext
from service_runtime.observability.span import NO_SPAN, Span
from service_runtime.observability.tracing import Tracing
from service_runtime.process.logs import get_logger
from service_runtime.rpc.handshake import shown


class SequenceKey(NamedTuple):
    """One opening of one sequence of one verifier.

    The epoch is part of it, so that what is still under way for an opening cannot be taken for its successor's.
    """

    stream: int
    """Number of the stream in this process."""
    sequence_id: int
    """The verifier's number of the sequence."""
    epoch: int
    """Number of the opening."""


log = get_logger(__name__)


@dataclass(slots=True)
class OpenedSequence:
    """State of a sequence in its drafting session; the drafter's own copy follows behind."""

    key: SequenceKey
    committed_length: int
    max_length: int
    request_id: str
    """The verifier's name of the request; empty where it has none."""
    has_states: bool = False
    """A verdict has brought a hidden state."""
    nodes: int = 0
    """Drafted for it and sent."""
    accepted: int = 0
    """Draft tokens accepted meanwhile, as its verdicts say, whoever drafted them."""
    span: Span = NO_SPAN

    def begin_span(self, tracing: Tracing, model_id: str, parent: TraceContext | None) -> None:
        """Begins its span where the verifier traces the request; to be called once."""
        if parent is not None:
            self.span = tracing.begin(
                f"draft {model_id}",
                parent,
                {
                    "gen_ai.operation.name": "draft",
                    "gen_ai.provider.name": "draftwire",
                    "gen_ai.request.model": model_id,
                    "draftwire.request_id": self.request_id,
                    "draftwire.sequence_id": self.key.sequence_id,
                    "draftwire.epoch": self.key.epoch,
                    "draftwire.committed_tokens": self.committed_length,
                },
            )
        log.debug("sequence opened", committed_length=self.committed_length, **self._names())

    def caught_up(self) -> None:
        """The drafter has computed what is committed, and drafts."""
        self.span.event("caught up", {})

    def closed(self, why: str = "") -> None:
        """Ends the span. `why`: the fault that ended the sequence, where one did."""
        log.debug("sequence closed", nodes=self.nodes, accepted=self.accepted, reason=shown(why), **self._names())
        if self.span.recording:
            self.span.set(
                {
                    "draftwire.draft_tokens": self.nodes,
                    "draftwire.accepted_tokens": self.accepted,
                    "draftwire.committed_length": self.committed_length,
                }
            )
            self.span.end(error="sequence_failed" if why else None, message=shown(why))

    def _names(self) -> dict[str, str | int]:
        key = self.key
        return {
            "sequence_id": key.sequence_id,
            "epoch": key.epoch,
            "request_id": self.request_id,
            **self.span.log_fields,
        }
