"""A drafter in the engine's thread whose network reads features of the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch

from draftwire_core.engine.drafters.drafter import EngineState
from draftwire_core.engine.drafters.features.draft_network import ConfigT, DraftNetwork
from draftwire_core.engine.drafters.features.feature_source import EngineFeatures, FeatureSource
from draftwire_core.engine.drafters.features.reading_drafter import feed_drafts
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter, RoundDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.linear.drafter_linear import pack_linears
from draftwire_core.engine.model.packed_model import PackedModel


class LocalFeatureDrafter(LocalModelDrafter):
    """A TappingDrafter (see `drafter.TappingDrafter`): a LocalModelDrafter whose network reads the target's features.

    A prompt is read behind the target, part by part.
    """

    def __init__(
        self,
        model: PackedModel,
        tap: Tap,
        share: float,
        make: Callable[[FeatureSource, TreeGrowth], RoundDrafter],
        window: int = 0,
    ):
        """model: the network. tap: makes its features. share: as for LocalModelDrafter. make: makes the drafter that
        drafts single steps from the features. window: last tokens of a text that it reads when it begins; 0 for
        all."""
        super().__init__(model, share)
        self.tap = tap
        self._make = make
        self._window = window

    @property
    def busy(self) -> bool:
        """Whether there is something to draft since the last commit, or to read."""
        return self._drafter.busy and (self._to_do or self._drafter.catching_up)

    def feed_drafts(self, own: Tap, target_ids: torch.Tensor | None, *, normed: bool) -> None:
        """Lets the network draft several steps by one call on a GPU. own, normed: what rows leave to those of their
        children, see `own_tap` and `Feeding`. target_ids: see `DraftNetwork`."""
        feed_drafts(self.model, self.tap.states.vectors, own, target_ids, normed=normed)

    def captured_for(self, target: PackedModel) -> Self:
        """Captures the network's graphs if the target's are captured; returns this drafter."""
        if target.captured:
            self.model.capture_graphs()
        return self

    def release(self) -> None:
        """Frees the network. The drafter cannot be used any more."""
        del self._make
        super().release()

    def _inner(self, engine: EngineState, growth: TreeGrowth) -> RoundDrafter:
        return self._make(EngineFeatures(self.tap.states, engine, self._window), growth)


def local_drafter(
    network: DraftNetwork[ConfigT],
    model: PackedModel,
    target: PackedModel,
    make: Callable[[FeatureSource, TreeGrowth], RoundDrafter],
    window: int,
) -> LocalFeatureDrafter:
    """Returns the drafter of a network. network: its map is packed. model: the network, packed. make, window: as for
    LocalFeatureDrafter."""
    weights = sum(parameter.numel() for parameter in network.mapping.parameters())
    rows = model.vocab_size * model.hidden_size + weights
    share = min(1.0, (rows + weights_of_layers(model)) / target.parameters)
    pack_linears(network.mapping)
    features = SlotStates(target.pool.capacity, model.hidden_size, model.dtype, target.device)
    return LocalFeatureDrafter(model, Tap(network.aux_layers, network.mapping, features), share, make, window)


def weights_of_layers(model: PackedModel) -> int:
    """Returns the number of weights in the linear layers of a model's decoder layers."""
    return sum(
        module.out_features * module.in_features
        for module in model.model.get_decoder().layers.modules()
        if hasattr(module, "out_features") and hasattr(module, "in_features")
    )
