"""The sequences that a verifier has open over one stream, and those whose opening is still coming."""

from collections import OrderedDict
from collections.abc import Iterable

import torch

from drafter_service.conversation.draft_loop import Commit, DraftLoop, Received
from drafter_service.conversation.handshake import MOST_TOKENS
from drafter_service.conversation.opened_sequence import OpenedSequence, SequenceKey
from drafter_service.conversation.sequence_opening import (
    SequenceOpening,
    check_length,
    check_token_ids,
    read_hidden_state,
)
from draftwire.v1 import drafter_service_pb2, features_pb2, model_info_pb2, verdict_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.model.features.feature_codec import feature_count
from draftwire_core.runtime.errors import at_capacity, failed_precondition, invalid_field, not_found
from draftwire_core.runtime.observability.tracing import Tracing
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)

_MAX_FAILED = 4096
"""Maximum number of failed openings remembered; the oldest are dropped first."""
RETRY_SECONDS = 1.0
"""Retry delay for a verifier that reads too slowly or has too many sequences open."""


class StreamSequences:
    """The sequences of one stream, by the verifier's ids. What a message says of one is checked here."""

    def __init__(self, drafting: DraftLoop, hello: model_info_pb2.PeerInfo, hidden_size: int, tracing: Tracing) -> None:
        """As for DraftingSession."""
        self._drafting = drafting
        self._hello = hello
        self._hidden_size = hidden_size
        self._tracing = tracing
        self._number = 0
        self._shared_vocab_size = 0
        self._openings: dict[int, SequenceOpening] = {}
        self._open: dict[int, OpenedSequence] = {}
        # The failed epoch of each sequence: messages that the verifier sent before it knew are not new faults.
        self._failed: OrderedDict[int, int] = OrderedDict()
        self.stale_messages = 0
        """Number of messages about openings that were replaced or have failed."""

    def __len__(self) -> int:
        """Number of open sequences."""
        return len(self._open)

    def start(self, number: int, shared_vocab_size: int) -> None:
        """Takes the stream's number in the draft loop, and the number of token ids that both sides have."""
        self._number, self._shared_vocab_size = number, shared_vocab_size

    def end(self) -> None:
        """Ends the spans of all open sequences, as the stream has ended."""
        for sequence in self._open.values():
            sequence.closed("the stream ended")

    def add(self, chunk: drafter_service_pb2.OpenSequence) -> None:
        """Takes a part of an opening; the last one opens the sequence. Raises ServiceError."""
        opening = self._openings.get(chunk.sequence_id)
        if opening is None or opening.epoch < chunk.epoch or chunk.offset == 0:
            opening = self._begin(chunk)
        opening.add(chunk)
        if opening.complete:
            self._complete(chunk.sequence_id, opening)

    def commit(self, verdict: verdict_pb2.Verdict, max_tree_nodes: int | None) -> Commit:
        """Reads what a verdict commits. max_tree_nodes: of its batch, if given. Raises ServiceError."""
        sequence = self._find(verdict.sequence_id, verdict.epoch)
        count = len(verdict.token_ids)
        if count == 0 or sequence.committed_length + count != verdict.committed_length:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_OUT_OF_SYNC,
                f"{count} tokens up to a length of {verdict.committed_length} do not continue the "
                f"{sequence.committed_length} tokens that the drafter has",
            )
        if verdict.committed_length > sequence.max_length:
            raise invalid_field("committed_length", f"exceeds max_length, {sequence.max_length}, of the opening")
        check_length(verdict.committed_length, self._hello.limits.max_sequence_tokens)
        check_token_ids(verdict.token_ids, self._hello.model.vocab_size)
        state = self._state(sequence, verdict)
        sequence.committed_length = verdict.committed_length
        sequence.accepted += verdict.accepted
        return Commit(sequence.key, verdict.committed_length, list(verdict.token_ids), max_tree_nodes, state)

    def _state(self, sequence: OpenedSequence, verdict: verdict_pb2.Verdict) -> torch.Tensor | None:
        """Reads a verdict's hidden state, which the first verdicts may lack: their steps began before the opening."""
        if not self._hidden_size:
            return None
        if not verdict.HasField("hidden_state"):
            if sequence.has_states:
                raise invalid_field(
                    "hidden_state", "must be set: this drafter drafts from it, and earlier verdicts had it"
                )
            return None
        sequence.has_states = True
        return read_hidden_state(verdict.hidden_state, self._hidden_size)

    def receive(self, features: features_pb2.TokenFeatures) -> Received:
        """Reads the features of a sequence's tokens. Raises ServiceError."""
        sequence = self._find(features.sequence_id, features.epoch)
        kind = self._hello.features
        try:
            count = feature_count(features.values, kind.width, kind.dtype)
        except ValueError as error:
            raise invalid_field("features.values", str(error)) from error
        if features.first_position + count > sequence.max_length:
            raise invalid_field(
                "features.first_position",
                f"{features.first_position} and {count} features exceed max_length, {sequence.max_length}, of the "
                "opening",
            )
        # Room is made for all positions up to these, and a verifier may open a sequence with any max_length.
        check_length(features.first_position + count, self._hello.limits.max_sequence_tokens, "features.first_position")
        return Received(sequence.key, features.first_position, count, features.values, kind.width, kind.dtype)

    def close(self, sequence_ids: Iterable[int]) -> None:
        """Closes the sequences and openings with these ids, as the verifier asks; unknown ids are ignored."""
        keys: list[SequenceKey] = []
        for sequence_id in sequence_ids:
            sequence = self._drop(sequence_id)
            if sequence is not None:
                sequence.closed()
                keys.append(sequence.key)
        if keys:
            self._drafting.close(keys)

    def forget(self, sequence_id: int, why: str = "") -> None:
        """Drops the opening or sequence of an id, if there is one. why: the fault that caused it; empty without one."""
        sequence = self._open.get(sequence_id)
        if sequence is not None:
            self._drafting.close([sequence.key])  # first: a sequence that cannot be closed must not be forgotten
            sequence.closed(why)
        self._drop(sequence_id)

    def fail(self, sequence_id: int, epoch: int, why: str, *, ended: bool) -> None:
        """Drops what has an id for a fault, and remembers the epoch. ended: the draft loop has closed the sequence."""
        sequence = self._drop(sequence_id)
        if sequence is not None:
            sequence.closed(why)
            if not ended:
                self._drafting.close([sequence.key])
        self._failed[sequence_id] = epoch
        self._failed.move_to_end(sequence_id)
        if len(self._failed) > _MAX_FAILED:
            self._failed.popitem(last=False)

    def is_stale(self, sequence_id: int, epoch: int, kind: str) -> bool:
        """Whether a message concerns an opening that was replaced or has failed. Counts stale messages.

        A complete opening that is sent again is stale, too.
        """
        known = []
        if sequence_id in self._failed:
            known.append(self._failed[sequence_id] + 1)
        if sequence_id in self._openings:
            known.append(self._openings[sequence_id].epoch)
        if sequence_id in self._open:
            known.append(self._open[sequence_id].key.epoch + (kind == "open"))
        if epoch >= max(known, default=0):
            return False
        self.stale_messages += 1
        log.debug("stale message ignored", kind=kind, sequence_id=sequence_id, epoch=epoch)
        return True

    def current(self, key: SequenceKey) -> OpenedSequence | None:
        """Returns the open sequence with a key; None if it has been closed or replaced."""
        sequence = self._open.get(key.sequence_id)
        return sequence if sequence is not None and sequence.key == key else None

    def request_id(self, sequence_id: int) -> str:
        """Returns the request's id of an open sequence or an opening; empty without one."""
        known = self._open.get(sequence_id) or self._openings.get(sequence_id)
        return known.request_id if known is not None else ""

    def _drop(self, sequence_id: int) -> OpenedSequence | None:
        """Forgets an id and its fault. Returns the sequence that was open."""
        self._openings.pop(sequence_id, None)
        self._failed.pop(sequence_id, None)
        return self._open.pop(sequence_id, None)

    def _begin(self, chunk: drafter_service_pb2.OpenSequence) -> SequenceOpening:
        """Takes the first chunk of an opening, which replaces any earlier opening of the same id."""
        self.forget(chunk.sequence_id)
        limits = self._hello.limits
        if len(self._open) + len(self._openings) >= limits.max_sequences:
            raise at_capacity(f"all {limits.max_sequences} sequences of the stream are open", RETRY_SECONDS)
        opening = SequenceOpening(chunk, limits, self._hello.model.vocab_size)
        coming = sum(other.committed_length for other in self._openings.values())
        if coming and coming + opening.committed_length > MOST_TOKENS:
            raise at_capacity(
                f"openings of {coming} tokens are incomplete; with {opening.committed_length} more they would exceed "
                f"{MOST_TOKENS}",
                RETRY_SECONDS,
            )
        self._openings[chunk.sequence_id] = opening
        return opening

    def _complete(self, sequence_id: int, opening: SequenceOpening) -> None:
        del self._openings[sequence_id]
        spec = opening.spec(self._shared_vocab_size)
        key = SequenceKey(self._number, sequence_id, opening.epoch)
        self._drafting.open(key, spec)
        sequence = OpenedSequence(key, len(spec.tokens), opening.max_length, opening.request_id)
        self._open[sequence_id] = sequence
        sequence.begin_span(self._tracing, self._hello.model.model_id, opening.trace_context)

    def _find(self, sequence_id: int, epoch: int) -> OpenedSequence:
        """Returns an open sequence. Raises ServiceError."""
        sequence = self._open.get(sequence_id)
        if sequence is None or sequence.key.epoch != epoch:
            raise not_found(
                ErrorReason.ERROR_REASON_UNKNOWN_SEQUENCE, f"sequence {sequence_id} is not open with epoch {epoch}"
            )
        return sequence
