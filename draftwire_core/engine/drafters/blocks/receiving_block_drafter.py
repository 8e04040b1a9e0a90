"""A drafter of blocks outside the target's process: features come in messages."""

from __future__ import annotations

from draftwire_core.engine.drafters.blocks.block_drafter import BlockDraft, BlockDrafter
from draftwire_core.engine.drafters.blocks.block_network import BlockNetwork
from draftwire_core.engine.drafters.features.received_features import ReceivedFeatures
from draftwire_core.engine.drafters.features.receiving_drafter import FeatureReceiver
from draftwire_core.engine.drafters.tree_growth import TreeGrowth


class ReceivingBlockDrafter(FeatureReceiver[BlockDraft], BlockDrafter):
    """A BlockDrafter that is given its features."""

    def __init__(self, network: BlockNetwork, growth: TreeGrowth | None = None):
        """As for BlockDrafter."""
        self._received = ReceivedFeatures(network.model.hidden_size, network.model.dtype)
        BlockDrafter.__init__(self, network, self._received, growth)
