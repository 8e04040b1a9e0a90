"""The opening of a sequence, assembled from OpenSequence chunks."""

from array import array
from collections.abc import Sequence

import torch

from draftwire.v1 import drafter_service_pb2, model_info_pb2, sampling_pb2, speculation_pb2, verdict_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.runtime.errors import invalid_field, refused_field
from draftwire_core.runtime.rpc.handshake import shown
from draftwire_core.runtime.rpc.request_id import check_request_id


class SequenceOpening:
    """Collects the chunks of one opening. Raises ServiceError for an invalid chunk."""

    def __init__(self, first: drafter_service_pb2.OpenSequence, limits: model_info_pb2.Limits, vocab_size: int) -> None:
        """first: the chunk with offset 0, which must also be passed to `add`. vocab_size: number of ids of the draft
        model.

        Checks the fields that concern the whole sequence before any tokens are kept.
        """
        self.epoch = first.epoch
        self.request_id = check_request_id("request_id", first.request_id) if first.request_id else ""
        """The verifier's id of the request, for the log; empty if it has none."""
        self.trace_context = first.trace_context if first.HasField("trace_context") else None
        """The verifier's span of the request; None if it is not traced."""
        self.max_length = first.max_length
        """Maximum committed length of the request."""
        self._vocab_size = vocab_size
        self.committed_length = first.committed_length
        """Number of tokens of the complete opening."""
        self._sampling = _sampling(first.sampling)
        self._draws = first.acceptance == speculation_pb2.ACCEPTANCE_RULE_REJECTION
        self._dynamic_temperature = first.dynamic_temperature
        if first.committed_length < 1:
            raise invalid_field("committed_length", "must be at least 1: a tree grows from a committed token")
        if first.max_length < first.committed_length:
            raise invalid_field(
                "max_length", f"must be at least committed_length, {first.committed_length}, got {first.max_length}"
            )
        if first.max_tree_nodes < 1:
            raise invalid_field("max_tree_nodes", "must be at least 1")
        check_length(first.committed_length, limits.max_sequence_tokens)
        self._max_tree_nodes = min(first.max_tree_nodes, limits.max_tree_nodes)
        self._limit = limits.max_sequence_tokens
        self._tokens = array("I")  # a fraction of a list's memory: a verifier may have many tokens held here

    @property
    def complete(self) -> bool:
        """Whether all tokens have arrived."""
        return len(self._tokens) == self.committed_length

    def add(self, chunk: drafter_service_pb2.OpenSequence) -> None:
        """Adds the next chunk. Raises ServiceError."""
        if chunk.committed_length != self.committed_length:
            raise invalid_field(
                "committed_length",
                f"must be {self.committed_length} as in the first chunk, got {chunk.committed_length}",
            )
        if chunk.offset != len(self._tokens):
            raise invalid_field(
                "offset", f"must be {len(self._tokens)}, the number of tokens so far, got {chunk.offset}"
            )
        room = self.committed_length - len(self._tokens)
        if not 1 <= len(chunk.token_ids) <= room:
            raise invalid_field("token_ids", f"must have 1 to {room} tokens in this chunk, got {len(chunk.token_ids)}")
        check_token_ids(chunk.token_ids, self._vocab_size)
        self._tokens.extend(chunk.token_ids)

    def spec(self, shared_vocab_size: int) -> DraftSpec:
        """Returns the specification of a complete opening. shared_vocab_size: number of ids that the target also
        has."""
        return DraftSpec(
            tokens=self._tokens.tolist(),
            sampling=self._sampling,
            max_tree_nodes=self._max_tree_nodes,
            # A request that may outgrow this drafter gets drafts for as long as it fits.
            max_length=min(self.max_length, self._limit),
            vocab_size=shared_vocab_size,
            draws=self._draws,
            dynamic_temperature=self._dynamic_temperature,
        )


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises ServiceError for the first id for which the model has no embedding."""
    if max(token_ids, default=0) < vocab_size:
        return  # a fast check, as prompts are long and nearly always valid
    for index, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            field = f"token_ids[{index}]"
            problem = f"is {token_id}, but the drafter's vocabulary has {vocab_size} ids"
            raise refused_field(ErrorReason.ERROR_REASON_TOKEN_OUT_OF_RANGE, field, problem)


def check_length(length: int, limit: int, field: str = "committed_length") -> None:
    """Raises ServiceError if a sequence is longer than this drafter supports. field: the one that says so."""
    if length > limit:
        problem = f"reaches {length}, but the drafter follows sequences of up to {limit} tokens"
        raise refused_field(ErrorReason.ERROR_REASON_CONTEXT_EXCEEDED, field, problem)


def _sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    if not message.HasField("seed"):
        raise invalid_field("sampling.seed", "must be set: the drafter draws the same noise as the verifier")
    try:
        return SamplingParams.read(message, message.seed).validate()
    except FieldError as error:
        raise invalid_field(error.field, error.description) from error


_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def read_hidden_state(message: verdict_pb2.HiddenState, hidden_size: int) -> torch.Tensor:
    """Decodes a hidden state [hidden_size]. Raises ServiceError."""
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise invalid_field("hidden_state.dtype", f"must be one of {', '.join(_DTYPES)}, got {shown(message.dtype)!r}")
    wanted = hidden_size * dtype.itemsize
    if len(message.values) != wanted:
        raise invalid_field(
            "hidden_state.values",
            f"must be {wanted} bytes, {hidden_size} values of {message.dtype}, got {len(message.values)}: these heads "
            "were trained for a target of that hidden size",
        )
    return torch.frombuffer(bytearray(message.values), dtype=dtype)
