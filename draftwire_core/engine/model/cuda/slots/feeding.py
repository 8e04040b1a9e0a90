"""The vectors that rows of drafts of several steps read next to their tokens, and those that they leave to children.

All are found by slot in tables of the device, so that a draft's graph needs nothing else from the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from draftwire_core.engine.model.cuda.slots.tapped_rows import TappedRows
from draftwire_core.engine.model.rows import Rows


@dataclass(frozen=True, slots=True)
class Feeding:
    """The tables of a network that reads features."""

    features: Tensor
    """The features of committed tokens by the target's slots, [slots + 1, width]."""
    own: Tensor
    """The vectors that its rows have left to those of their children, by its own slots, [slots + 1, width]."""
    layers: int
    """Of the network."""
    normed: bool
    """Whether a row leaves its last hidden state after the final norm; otherwise, the output of the last layer."""
    in_target_ids: Callable[[Tensor], Tensor]
    """Maps logits to those by the target's ids, without waiting for the device."""

    def tapped(self, rows: int) -> TappedRows | None:
        """Memory for what leaves the last layer, if that is read."""
        if self.normed:
            return None
        like = self.own
        tapped = TappedRows(self.layers, 1, rows, like.shape[1], like.dtype, like.device)
        tapped.choose((self.layers,))
        return tapped

    def feed(self, reads: Tensor, into: Tensor) -> None:
        """Writes what rows read, [rows, width]. reads: int64 [rows], the network's own slot, or -1 minus the target's
        slot."""
        from draftwire_core.engine.model.cuda.kernels.table_copies import feed_rows  # needs Triton

        feed_rows(self.own, self.features, reads, into)

    def keep(self, slots: Tensor, tapped: TappedRows | None, found: Rows) -> Tensor:
        """Keeps what rows leave to their children, and returns their logits by the target's ids. slots: the rows' own,
        int64 [rows]. tapped: the memory of the pass."""
        states = found.states if tapped is None else tapped.read(self.layers, len(slots))
        self.own.index_copy_(0, slots, states.to(self.own.dtype))
        return self.in_target_ids(found.logits)
