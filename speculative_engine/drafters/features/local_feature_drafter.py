"""A drafter in the engine's thread whose network reads features of the target."""

from __future__ import annotations

import torch
from torch import nn

from speculative_engine.drafters.drafter import EngineState
from speculative_engine.drafters.features.feature_source import EngineFeatures
from speculative_engine.drafters.features.reading_drafter import ReadingDrafter
from speculative_engine.drafters.model.local_model import LocalModelDrafter
from speculative_engine.drafters.tree_growth import TreeGrowth
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.taps import Tap


class LocalFeatureDrafter(LocalModelDrafter):
    """A TappingDrafter (see `drafter.TappingDrafter`): a LocalModelDrafter whose network reads the target's features.

    A prompt is read behind the target, part by part.
    """

    def __init__(
        self,
        model: PackedModel,
        tap: Tap,
        feed_back: nn.Module,
        share: float,
        target_ids: torch.Tensor | None = None,
    ):
        """model: the network. tap: makes its features. feed_back, target_ids: as for ReadingDrafter. share: as for
        LocalModelDrafter."""
        super().__init__(model, share)
        self.tap = tap
        self._feed_back = feed_back
        self._target_ids = target_ids

    @property
    def busy(self) -> bool:
        """Whether there is something to draft since the last commit, or to read."""
        return self._drafter.busy and (self._to_do or self._drafter.catching_up)

    def _inner(self, engine: EngineState, growth: TreeGrowth) -> ReadingDrafter:
        features = EngineFeatures(self.tap.states, engine)
        return ReadingDrafter(self.model, features, self._target_ids, self._feed_back, growth)


class Lent(nn.Module):
    """A module of the target, used without being a part of this model."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._module = (module,)  # in a tuple, so that it is not registered

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Runs the module."""
        lent: torch.Tensor = self._module[0](inputs)
        return lent


class LentHead(Lent):
    """The target's output head."""

    def __init__(self, module: nn.Module, outputs: int, inputs: int):
        super().__init__(module)
        self.out_features, self.in_features = outputs, inputs


def weights_of_layers(model: PackedModel) -> int:
    """Returns the number of weights in the linear layers of a model's decoder layers."""
    return sum(
        module.out_features * module.in_features
        for module in model.model.get_decoder().layers.modules()
        if hasattr(module, "out_features") and hasattr(module, "in_features")
    )
