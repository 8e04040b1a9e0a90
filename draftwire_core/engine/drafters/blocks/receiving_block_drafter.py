"""A drafter of blocks outside the target's process: features come in messages."""

from __future__ import annotations

from speculative_engine.drafters.blocks.block_drafter import BlockDraft, BlockDrafter
from speculative_engine.drafters.blocks.block_network import BlockNetwork
from speculative_engine.drafters.features.received_features import ReceivedFeatures
from speculative_engine.drafters.features.receiving_drafter import FeatureReceiver
from speculative_engine.drafters.tree_growth import TreeGrowth


class ReceivingBlockDrafter(FeatureReceiver[BlockDraft], BlockDrafter):
    """A BlockDrafter that is given its features."""

    def __init__(self, network: BlockNetwork, growth: TreeGrowth | None = None):
        """As for BlockDrafter."""
        self._received = ReceivedFeatures(network.model.hidden_size, network.model.dtype)
        BlockDrafter.__init__(self, network, self._received, growth)
