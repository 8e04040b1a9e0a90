"""The target's results for the rows of a step from which tokens are drawn."""

from __future__ import annotations

from torch import Tensor


class AskedRows:
    """The target's results for those rows of a step that asked for logits, in row order.

    Parts share the tensors of the whole, and slice them when they are read: most steps read none of them again.
    """

    __slots__ = ("_logits", "_raw", "_states", "drawn", "first", "on_path")

    def __init__(
        self,
        drawn: list[int],
        on_path: list[bool] | None,
        logits: Tensor,
        raw: Tensor,
        states: Tensor | None,
        first: int = 0,
    ):
        """logits, raw, states: of a whole step, of which these rows are those from `first` on."""
        self.drawn = drawn
        """The token that the target drew after each row; -1 where the logits were bad."""
        self.on_path = on_path
        """Whether each row is on the path of the drawn tokens; None if the host has to walk the path."""
        self._logits, self._raw, self._states = logits, raw, states
        self.first = first
        """Number of the step's rows before these."""

    @property
    def logits(self) -> Tensor:
        """The logits that the tokens were drawn from, [rows, V], with the requests' edits. Further rows may follow."""
        return self._from_first(self._logits)

    @property
    def raw(self) -> Tensor:
        """The target's unedited logits, [rows, V] and further rows; the same if no request edits them."""
        return self._from_first(self._raw)

    @property
    def states(self) -> Tensor | None:
        """The hidden state after each token, [rows, hidden] and further rows; None unless a drafter drafts from it."""
        return None if self._states is None else self._from_first(self._states)

    def of(self, rows: slice) -> AskedRows:
        """Returns a slice of the rows, which begins at 0 or above."""
        path = None if self.on_path is None else self.on_path[rows]
        first = self.first + (rows.start or 0)
        return AskedRows(self.drawn[rows], path, self._logits, self._raw, self._states, first)

    def _from_first(self, tensor: Tensor) -> Tensor:
        return tensor[self.first :] if self.first else tensor
