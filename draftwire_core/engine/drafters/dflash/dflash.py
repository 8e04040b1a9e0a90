"""DFlash in the verifier: `local:dflash`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from draftwire_core.engine.drafters.blocks.block_drafter import BlockDrafter
from draftwire_core.engine.drafters.dflash.dflash_files import load_dflash
from draftwire_core.engine.drafters.dflash.dflash_network import DflashNetwork
from draftwire_core.engine.drafters.features.feature_source import FeatureSource
from draftwire_core.engine.drafters.features.lent import NetworkOptions, network_of
from draftwire_core.engine.drafters.features.local_feature_drafter import LocalFeatureDrafter, local_drafter
from draftwire_core.engine.drafters.marginal_growth import WIDTH
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.room_for_cache import OF_TARGET

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

    window = options.window or dflash.config.window
    return local_drafter(dflash, network.model, target, make, window).captured_for(target)
