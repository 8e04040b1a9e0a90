"""The network of a drafter of blocks, as the drafter needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from draftwire_core.engine.drafters.features.trial_pass import try_out
from draftwire_core.engine.model.packed_model import PackedModel


class Reading(NamedTuple):
    """Committed tokens to read, each next to the feature of the token before it."""

    context: np.ndarray
    """Slots of what was read before, int64."""
    tokens: Sequence[int]
    positions: np.ndarray
    """Of the tokens, int64 [n]."""
    features: torch.Tensor
    """[n, width]"""
    slots: np.ndarray
    """Slots to write to, int64 [n]."""


class Block(NamedTuple):
    """The state that a block is predicted from."""

    context: np.ndarray
    """Slots of what has been read, int64."""
    root: int
    """The last committed token."""
    position: int
    """The root's."""
    feature: torch.Tensor
    """The feature of the token before the root, [1, width]."""


class BlockNetwork(Protocol):
    """A network over KV slots that reads features of a text, and guesses blocks behind it."""

    @property
    def model(self) -> PackedModel:
        """The network, with its KV cache and the pool of its slots."""

    @property
    def rows(self) -> int:
        """Rows of a block, each of which needs a slot for the time of a pass."""

    @property
    def guesses(self) -> int:
        """Number of tokens that a block guesses."""

    def read(self, reading: Reading) -> None:
        """Reads committed tokens."""

    def guess(self, blocks: Sequence[Block], positions: int) -> torch.Tensor:
        """Returns the logits for the first `positions` tokens after each root, [blocks * positions, vocabulary], block
        by block. The pool must have the slots of all blocks free."""


def try_blocks(network: BlockNetwork, feature: torch.Tensor, setting: str) -> None:
    """Reads two tokens and guesses a block behind them. feature: read next to each, [1, width]. setting: as for
    `try_out`, which has the errors, too."""

    def run(slots: np.ndarray) -> torch.Tensor:
        features = feature.expand(len(slots), -1)
        network.read(Reading(slots[:0], [0] * len(slots), np.arange(1, len(slots) + 1), features, slots))
        return network.guess([Block(slots, 0, len(slots), feature)], 1)

    try_out(network.model, run, network.rows, setting)
