"""EAGLE-3 and P-EAGLE in the verifier: `local:eagle3`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from torch import nn

from speculative_engine.drafters.blocks.block_drafter import BlockDrafter
from speculative_engine.drafters.eagle.eagle_files import Eagle, load_eagle
from speculative_engine.drafters.eagle.parallel_network import ParallelEagleNetwork
from speculative_engine.drafters.features.feature_source import FeatureSource
from speculative_engine.drafters.features.lent import network_of
from speculative_engine.drafters.features.local_feature_drafter import LocalFeatureDrafter, tap_and_share
from speculative_engine.drafters.features.reading_drafter import ReadingDrafter
from speculative_engine.drafters.features.trial_pass import try_pass
from speculative_engine.drafters.tree_growth import TreeGrowth
from speculative_engine.field_error import FieldError
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.room_for_cache import OF_TARGET
from speculative_engine.model.weight_names import Weights


@dataclass(frozen=True, slots=True)
class EagleOptions:
    """Options of `local:eagle3`."""

    model: str = ""
    """Directory or hub id of an EAGLE-3 or P-EAGLE checkpoint for the target; required."""
    window: int = 0
    """Last tokens of a text that it reads when it begins; 0 for all."""
    weights: str = "checkpoint"
    """Weights of the linear layers, as for the drafter service's `--weights`."""

    def __post_init__(self) -> None:
        if self.weights not in get_args(Weights):
            raise FieldError("weights", f"must be one of {', '.join(get_args(Weights))}, got {self.weights!r}")
        if self.window < 0:
            raise FieldError("window", f"must be at least 0, got {self.window}")
        if not self.model:
            raise FieldError("model", "must be given: the directory or hub id of an EAGLE-3 or P-EAGLE checkpoint")


def eagle3_drafter(options: EagleOptions, target: PackedModel, hub: bool = True) -> LocalFeatureDrafter:
    """Makes the drafter `local:eagle3`. hub: whether its model may be a hub id. Raises ModelLoadError."""
    name, eagle = network_of("local:eagle3", options.model, target, hub, load_eagle)
    if eagle.config.mask_token is not None:
        return _parallel(eagle, name, target, options)
    weights = cast(Weights, options.weights)
    model = PackedModel(eagle.model, target.pool.capacity, name=name, row_exact=False, weights=weights)
    try_pass(model, OF_TARGET)
    feed_back: nn.Module = model.model.model.norm if eagle.config.norm_output else nn.Identity()
    target_ids = eagle.target_ids

    def make(source: FeatureSource, growth: TreeGrowth) -> ReadingDrafter:
        return ReadingDrafter(model, source, target_ids, feed_back, growth)

    tap, share = tap_and_share(eagle, model, target)
    return LocalFeatureDrafter(model, tap, share, make, options.window)


def _parallel(eagle: Eagle, name: str, target: PackedModel, options: EagleOptions) -> LocalFeatureDrafter:
    """Makes the drafter of a P-EAGLE checkpoint. Raises ModelLoadError."""
    slots, weights = target.pool.capacity + eagle.config.guesses, cast(Weights, options.weights)
    network = ParallelEagleNetwork(eagle, slots, name, weights, OF_TARGET)

    def make(source: FeatureSource, growth: TreeGrowth) -> BlockDrafter:
        return BlockDrafter(network, source, growth)

    tap, share = tap_and_share(eagle, network.model, target)
    return LocalFeatureDrafter(network.model, tap, share, make, options.window)
