"""The target in the process of a learner: its states on texts, and its weights that heads share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel

_ROWS = 256
"""Tokens of a pass, or unit vectors that go through the output head at once."""


class TargetReader:
    """A target that reads texts. It runs on the kernels that serve it, so that its states are those of drafting."""

    def __init__(self, model: PackedModel):
        """model: the target, with as many free KV slots as its longest text has tokens."""
        self.model = model
        self.hidden_size, self.vocab_size = model.hidden_size, model.vocab_size

    def states(self, tokens: Sequence[int]) -> torch.Tensor:
        """Returns the last hidden states of a text, [tokens, hidden], in bfloat16."""
        model = self.model
        slots = model.pool.take(len(tokens))
        try:
            parts = []
            at_once = len(tokens) if model.recurrent_layers else _ROWS  # their states are not carried between passes
            for begin in range(0, len(tokens), at_once):
                end = min(len(tokens), begin + at_once)
                builder = BatchBuilder()
                rows = [builder.add_row(tokens[at], at, int(slots[at]), wants_logits=True) for at in range(begin, end)]
                builder.add_lane(slots[:begin], rows)
                parts.append(self._states(builder))
            return torch.cat(parts)
        finally:
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
        """Returns the rows of the output head of tokens, int64 [tokens] -> float32 [tokens, hidden].

        The head's products with unit vectors are its columns, whatever form its weights have.
        """
        head, model = self.model.model.get_output_embeddings(), self.model
        units = torch.eye(self.hidden_size, dtype=model.dtype, device=model.device)
        with torch.no_grad():
            columns = [head(part)[:, token_ids].float() for part in units.split(_ROWS)]
        return torch.cat(columns).T.contiguous()
