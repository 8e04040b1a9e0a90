"""EAGLE-3 and P-EAGLE in the verifier: `local:eagle3`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast, get_args

from torch import nn

from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.drafters.blocks.block_drafter import BlockDrafter
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.eagle.parallel_network import ParallelEagleNetwork
from draftwire_core.engine.drafters.features.feature_source import FeatureSource
from draftwire_core.engine.drafters.features.lent import NetworkOptions, network_of
from draftwire_core.engine.drafters.features.local_feature_drafter import LocalFeatureDrafter, local_drafter
from draftwire_core.engine.drafters.features.reading_drafter import ReadingDrafter, own_tap
from draftwire_core.engine.drafters.features.trial_pass import try_pass
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.room_for_cache import OF_TARGET


@dataclass(frozen=True, slots=True)
class EagleOptions(NetworkOptions):
    """Options of `local:eagle3`."""

    kind: ClassVar[str] = "an EAGLE-3 or P-EAGLE"
    weights: str = "checkpoint"
    """Weights of the linear layers, as for the drafter service's `--weights`."""

    def __post_init__(self) -> None:
        if self.weights not in get_args(Weights):
            raise FieldError("weights", f"must be one of {', '.join(get_args(Weights))}, got {self.weights!r}")
        NetworkOptions.__post_init__(self)  # super() does not know the class that slots make


def eagle3_drafter(options: EagleOptions, target: PackedModel, hub: bool = True) -> LocalFeatureDrafter:
    """Makes the drafter `local:eagle3`. hub: whether its model may be a hub id. Raises ModelLoadError."""
    name, eagle = network_of("local:eagle3", options.model, target, hub, load_eagle)
    weights = cast(Weights, options.weights)
    if eagle.config.mask_token is not None:
        slots = target.pool.capacity + eagle.config.guesses
        network = ParallelEagleNetwork(eagle, slots, name, weights, OF_TARGET)

        def make_block(source: FeatureSource, growth: TreeGrowth) -> BlockDrafter:
            return BlockDrafter(network, source, growth)

        return local_drafter(eagle, network.model, target, make_block, options.window).captured_for(target)
    slots = target.pool.capacity
    model = PackedModel(eagle.model, slots, name=name, row_exact=False, weights=weights, reads_features=True)
    try_pass(model, OF_TARGET)
    normed, target_ids = eagle.config.norm_output, eagle.target_ids
    own = own_tap(model, model.model.model.norm if normed else nn.Identity())

    def make(source: FeatureSource, growth: TreeGrowth) -> ReadingDrafter:
        return ReadingDrafter(model, source, target_ids, own, growth)

    drafter = local_drafter(eagle, model, target, make, options.window)
    drafter.feed_drafts(own, target_ids, normed=normed)
    return drafter.captured_for(target)
