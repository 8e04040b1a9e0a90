"""DFlash in the verifier: `local:dflash`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from speculative_engine.drafters.blocks.block_drafter import BlockDrafter
from speculative_engine.drafters.dflash.dflash_files import load_dflash
from speculative_engine.drafters.dflash.dflash_network import DflashNetwork
from speculative_engine.drafters.features.feature_source import FeatureSource
from speculative_engine.drafters.features.lent import network_of
from speculative_engine.drafters.features.local_feature_drafter import LocalFeatureDrafter, local_drafter
from speculative_engine.drafters.features.network_options import NetworkOptions
from speculative_engine.drafters.marginal_growth import WIDTH
from speculative_engine.drafters.tree_growth import TreeGrowth
from speculative_engine.field_error import FieldError
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.room_for_cache import OF_TARGET

MOST_WIDTH = 16


@dataclass(frozen=True, slots=True)
class DflashOptions(NetworkOptions):
    """Options of `local:dflash`."""

    kind: ClassVar[str] = "a DFlash"
    width: int = WIDTH
    """Most children of a node; 1 for chains."""

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MOST_WIDTH:
            raise FieldError("width", f"must be from 1 to {MOST_WIDTH}, got {self.width}")
        NetworkOptions.__post_init__(self)  # super() does not know the class that slots make


def dflash_drafter(options: DflashOptions, target: PackedModel, hub: bool = True) -> LocalFeatureDrafter:
    """Makes the drafter `local:dflash`. hub: whether its model may be a hub id. Raises ModelLoadError."""
    name, dflash = network_of("local:dflash", options.model, target, hub, load_dflash)
    network = DflashNetwork(dflash, target.pool.capacity + dflash.config.block_size, name, OF_TARGET)

    def make(source: FeatureSource, growth: TreeGrowth) -> BlockDrafter:
        return BlockDrafter(network, source, growth, options.width)

    return local_drafter(dflash, network.model, target, make, options.window or dflash.config.window)
