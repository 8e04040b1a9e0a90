"""The target for a learner: its states on texts, and its weights that heads share."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from draftwire import Client, Prediction
from draftwire._messages.scoring import ScoreReader
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.engine.kv.recurrent_states import LaneState, SequenceState
from draftwire_core.engine.model.features.feature_codec import INT8, decode
from draftwire_core.engine.model.linear.drafter_linear import rows_of_head
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel

_ROWS = 256
"""Tokens of a pass."""
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 600.0
_TRIED = 4
"""Tokens on which the scale of logits is found. One alone may be of padding, whose embedding is zero."""


class TargetReader:
    """A target in this process. It runs on the kernels that serve it, so that its states are those of drafting."""

    def __init__(self, model: PackedModel):
        """model: the target, with as many free KV slots as its longest text has tokens."""
        self.model = model
        self.hidden_size, self.vocab_size = model.hidden_size, model.vocab_size

    def states(self, tokens: Sequence[int], begin: int = 0) -> torch.Tensor | None:
        """Returns the last hidden states of a text from a place on, [places, hidden], in bfloat16; None if they cannot
        be had now."""
        model = self.model
        slots, state = model.pool.take(len(tokens)), SequenceState()
        try:
            parts = []
            for start in range(0, len(tokens), _ROWS):
                end = min(len(tokens), start + _ROWS)
                builder = BatchBuilder()
                rows = [builder.add_row(tokens[at], at, int(slots[at]), wants_logits=True) for at in range(start, end)]
                builder.add_lane(slots[:start], rows, 0, LaneState(state))
                parts.append(self._states(builder))
            return torch.cat(parts)[begin:]
        finally:
            state.release()
            model.pool.give_back(slots)

    def _states(self, builder: BatchBuilder) -> torch.Tensor:
        model = self.model
        batch = builder.build(model.group_size, model.device)
        # A copy made outside inference mode may be trained on.
        return model.forward_with_states(batch)[1].to(torch.bfloat16, copy=True)

    def embeddings(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings [tokens, hidden] of tokens, int64 [tokens]."""
        with torch.no_grad():
            found: torch.Tensor = self.model.model.get_input_embeddings()(token_ids.to(self.model.device))
            return found

    def output_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the output head of tokens, int64 [tokens] -> float32 [tokens, hidden], in the scale of
        the target's logits, without a bias."""
        model = self.model
        like = torch.empty(self.hidden_size, 0, dtype=model.dtype, device=model.device)
        rows, _ = rows_of_head(model.model.get_output_embeddings(), token_ids, like)
        return self._scale(token_ids[-_TRIED:].tolist()) * rows

    def _scale(self, tokens: list[int]) -> float:
        """Returns the scale of the target's logits relative to the products of its output head, which models such as
        Granite and Cohere have. tokens: to try it on."""
        model, builder = self.model, BatchBuilder()
        slots = model.pool.take(len(tokens))
        try:
            rows = [builder.add_row(token, at, int(slots[at]), wants_logits=True) for at, token in enumerate(tokens)]
            builder.add_lane(slots[:0], rows)
            logits, states = model.forward_with_states(builder.build(model.group_size, model.device))
            with torch.no_grad():
                products = model.model.get_output_embeddings()(states.to(model.dtype)).float()
            return float((logits.float() * products).sum() / products.square().sum())
        finally:
            model.pool.give_back(slots)


class VerifierReader(TargetReader):
    """A target that reads texts in its verifier, while that has nothing else to do. One layer of it is enough here."""

    def __init__(self, client: Client, model: PackedModel, seconds: float):
        """client: of a verifier that scores texts. model: the target's embedding and output head, with any layers.
        seconds: time to wait until the verifier is idle, for all texts together."""
        super().__init__(model)
        self._client = client
        self._deadline = time.monotonic() + seconds

    def states(self, tokens: Sequence[int], begin: int = 0) -> torch.Tensor | None:
        """Returns the last hidden states of a text from a place on, as 8 bits have them; None once the time to wait is
        over. Raises DraftwireError."""
        while not self._is_idle():
            if time.monotonic() > self._deadline:
                return None
            time.sleep(_LOOK_SECONDS)
        reader = _StateReader(tokens, begin)
        with self._client._transport.stream(reader, _ANSWER_SECONDS) as stream:
            for _ in stream:
                pass
        return decode(b"".join(reader.parts), self.hidden_size, INT8).to(torch.bfloat16)

    def _is_idle(self) -> bool:
        engine = self._client.model_info(timeout=_ANSWER_SECONDS).engine
        return not engine.running_sequences and not engine.waiting_requests


class _StateReader(ScoreReader):
    """Reads the hidden states along a text, next to the distributions."""

    def __init__(self, tokens: Sequence[int], begin: int):
        super().__init__(tokens, 1, begin + 1)
        self.parts: list[bytes] = []

    def next_request(self, *, resumable: bool) -> pb.ScoreRequest:
        """Returns the request for what has not been read."""
        request = super().next_request(resumable=resumable)
        request.states = True
        return request

    def read(self, response: pb.ScoreResponse) -> list[Prediction] | None:
        """Keeps the states of a response."""
        self.parts.append(response.states)
        return super().read(response)
