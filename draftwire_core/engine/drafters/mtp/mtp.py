"""Multi-token prediction in the verifier: `local:mtp`.

DeepSeek-AI, "DeepSeek-V3 technical report", arXiv 2412.19437, section 2.2: a decoder layer that reads the target's last
hidden state next to the next token's embedding, and predicts the token after it. Here the first such layer drafts by
itself: it reads its own hidden states from the second token on, as most published ones are used.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftwire_core.engine.drafters.features.feature_source import FeatureSource
from draftwire_core.engine.drafters.features.lent import Lent, LentHead, check_tapped
from draftwire_core.engine.drafters.features.local_feature_drafter import LocalFeatureDrafter, weights_of_layers
from draftwire_core.engine.drafters.features.reading_drafter import ReadingDrafter, own_tap
from draftwire_core.engine.drafters.features.trial_pass import try_pass
from draftwire_core.engine.drafters.mtp.mtp_files import load_mtp
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.room_for_cache import OF_TARGET


@dataclass(frozen=True, slots=True)
class MtpOptions:
    """Options of `local:mtp`: none, since the layer is in the target's own checkpoint."""


def mtp_drafter(_: MtpOptions, target: PackedModel) -> LocalFeatureDrafter:
    """Makes the drafter `local:mtp`. Raises ModelLoadError."""
    check_tapped("local:mtp", target)
    if target.checkpoint is None:
        raise ModelLoadError("local:mtp needs a target that was loaded from a checkpoint")
    embedding = Lent(target.model.get_input_embeddings())
    mtp = load_mtp(target.checkpoint, type(target.model), embedding, target.dtype)
    mtp.model.config.max_position_embeddings = target.context_length
    head = target.model.get_output_embeddings()
    mtp.model.set_output_embeddings(LentHead(head, target.vocab_size, target.hidden_size))
    mtp.model.to(target.device)
    slots = target.pool.capacity
    model = PackedModel(mtp.model, slots, name=f"{target.name} (mtp)", row_exact=False, reads_features=True)
    try_pass(model, OF_TARGET)
    states = SlotStates(slots, target.hidden_size, target.dtype, target.device)
    tap = Tap([target.layers], Lent(target.model.get_decoder().norm), states)
    share = (model.vocab_size * model.hidden_size + weights_of_layers(model)) / target.parameters
    own = own_tap(model, model.model.get_decoder().norm)

    def make(source: FeatureSource, growth: TreeGrowth) -> ReadingDrafter:
        return ReadingDrafter(model, source, None, own, growth)

    drafter = LocalFeatureDrafter(model, tap, min(1.0, share), make)
    drafter.feed_drafts(own, None, normed=True)
    return drafter.captured_for(target)
