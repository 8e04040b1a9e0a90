"""Drafters outside the target's process: features come in messages."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.features.reading_drafter import ReadingDrafter
from draftwire_core.engine.drafters.features.received_features import ReceivedFeatures
from draftwire_core.engine.drafters.model.draft_model import ModelDraft
from draftwire_core.engine.drafters.model.slot_drafter import SlotDrafter, SlotDraftT
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_model import PackedModel


class FeatureReceiver(SlotDrafter[SlotDraftT]):
    """The part of a FeatureDrafter (see `drafter.FeatureDrafter`) that keeps the features that it is given."""

    _received: ReceivedFeatures

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Starts drafting for a sequence, as yet without features. Raises DrafterFullError."""
        super().open(key, spec)
        self._received.open(key)

    def close(self, key: Hashable) -> None:
        """Stops drafting for a sequence and drops its features."""
        super().close(key)
        self._received.close(key)

    def receive(self, key: Hashable, start: int, features: torch.Tensor) -> None:
        """Takes features [n, width] of a sequence's tokens from position `start` on. Raises KeyError."""
        self._received.add(key, start, features)


class ReceivingDrafter(FeatureReceiver[ModelDraft], ReadingDrafter):
    """A ReadingDrafter that is given its features."""

    def __init__(
        self,
        model: PackedModel,
        target_ids: torch.Tensor | None,
        own: Tap,
        growth: TreeGrowth | None = None,
        table: SlotStates | None = None,
    ):
        """table: see ReceivedFeatures. For the others see ReadingDrafter."""
        self._received = ReceivedFeatures(model.hidden_size, model.dtype, model.device, table)
        ReadingDrafter.__init__(self, model, self._received, target_ids, own, growth)
