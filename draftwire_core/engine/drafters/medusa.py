"""Medusa: heads on the target's last hidden state guess the next tokens, one head per position ahead.

Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", arXiv 2401.10774. There
the target's own head guesses the next token and the heads those after it. Here the next token is already committed, so
the first head's guesses are the root's children.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from draftwire_core.engine.drafters.base import StateDraft, StateTreeDrafter
from draftwire_core.engine.drafters.marginal_growth import Guesses, MarginalGrowth
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads, load_heads
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.model.linear.drafter_linear import pack_linears
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel


@dataclass(frozen=True, slots=True)
class MedusaOptions:
    """The heads to draft with."""

    heads: str = ""
    """Directory of the heads."""

    def __post_init__(self) -> None:
        if not self.heads:
            raise FieldError("heads", "must name a directory of heads")


class MedusaDrafter(StateTreeDrafter):
    """A StateDrafter (see `drafter.StateDrafter`).

    One pass over the heads drafts for all sequences with a new state. Trees grow from their guesses (MarginalGrowth).
    """

    def __init__(self, heads: MedusaHeads):
        """heads: ownership passes to the drafter, which packs their linear layers."""
        super().__init__()
        self.hidden_size = heads.hidden_size
        weight = next(heads.parameters())
        self._dtype, self._device = weight.dtype, weight.device
        self.growth = MarginalGrowth(len(heads), "head", self._device)
        pack_linears(heads)
        self._heads = heads

    def observe(self, draft: StateDraft, tokens: Sequence[int]) -> None:
        """Updates each head's acceptance estimates."""
        self.growth.observe(draft, tokens)

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """Stores a sequence's hidden state, as the heads read it, and schedules its next draft."""
        super().see(key, state.to(self._device, self._dtype))

    def extend(self, drafts: Sequence[StateDraft]) -> None:
        """Drafts for all sequences with a new state, in one pass over the heads."""
        self.clock.enter("plan")
        seeing = [draft for draft in drafts if draft.state is not None and draft.tree.size < draft.max_tree_nodes]
        if seeing:
            guesses = self._guess(seeing)
            self.clock.enter("walk")
            for draft, ahead in zip(seeing, guesses, strict=True):
                self.growth.extend(draft, ahead)

    def _guess(self, drafts: list[StateDraft]) -> list[Guesses]:
        """Returns the guesses for each sequence."""
        self.clock.enter("forward")
        asked = self.growth.positions()
        with torch.inference_mode():
            logits = self._heads(torch.stack([draft.state for draft in drafts if draft.state is not None]), asked)
        self.clock.enter("sample")
        rows = self.growth.find(
            logits,
            [(draft.spec, draft.tree.root.position + ahead) for ahead in range(1, asked + 1) for draft in drafts],
        )
        return [rows[index :: len(drafts)] for index in range(len(drafts))]


def medusa_drafter(options: MedusaOptions, target: PackedModel) -> MedusaDrafter:
    """Makes the drafter `local:medusa`. Raises ModelLoadError."""
    heads = load_heads(options.heads, target.dtype, target.device)
    for what, ours, its in (
        ("hidden size", heads.hidden_size, target.hidden_size),
        ("vocabulary size", heads.vocab_size, target.vocab_size),
    ):
        if ours != its:
            raise ModelLoadError(f"heads {options.heads}: {what} {ours} does not match the target's {its}")
    return MedusaDrafter(heads)
