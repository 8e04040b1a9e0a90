"""A sequence that a verifier has opened, and its key."""

from dataclasses import dataclass
from typing import NamedTuple

from draftwire.v1.trace_context_pb2 import TraceContext
from draftwire_core.runtime.observability.span import NO_SPAN, Span
from draftwire_core.runtime.observability.tracing import Tracing
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.handshake import shown


class SequenceKey(NamedTuple):
    """One opening of one sequence of one verifier.

    The epoch is part of the key, so that results still in flight for an opening are never attributed to its successor.
    """

    stream: int
    """The stream's number in this process."""
    sequence_id: int
    """The verifier's id of the sequence."""
    epoch: int
    """Number of the opening."""


log = get_logger(__name__)


@dataclass(slots=True)
class OpenedSequence:
    """The session's state of a sequence; the drafter's own copy lags behind it."""

    key: SequenceKey
    committed_length: int
    max_length: int
    request_id: str
    """The verifier's id of the request; empty if it has none."""
    has_states: bool = False
    """Whether a verdict has carried a hidden state."""
    nodes: int = 0
    """Number of nodes drafted for the sequence and sent."""
    accepted: int = 0
    """Accepted draft tokens according to the sequence's verdicts, from all drafters."""
    span: Span = NO_SPAN

    def begin_span(self, tracing: Tracing, model_id: str, parent: TraceContext | None) -> None:
        """Begins the sequence's span if the verifier traces the request. Must be called once."""
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
        """Records that the drafter has caught up with the committed tokens and begins to draft."""
        self.span.event("caught up", {})

    def closed(self, why: str = "") -> None:
        """Ends the span. why: the fault that ended the sequence; empty without one."""
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
