"""The places between layers at which passes of slots keep hidden states, for taps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwire_core.engine.model.attention.packed_attention import current_pass, in_packed_pass
from draftwire_core.engine.model.cuda.slots.slot_batch import SlotRows
from draftwire_core.engine.model.shallow_model import decoder_layers, stream_of

if TYPE_CHECKING:
    from draftwire_core.engine.model.cuda.kernels.norm import Kept


def kept_at(layer: int) -> Kept | None:
    """The memory that keeps what enters a layer in the running pass; None if it keeps nothing."""
    if not in_packed_pass():
        return None
    batch = current_pass().batch
    return batch.tapped.at(layer) if isinstance(batch, SlotRows) and batch.tapped is not None else None


def keep_between(model: PreTrainedModel) -> bool:
    """Makes passes keep what enters and leaves layers of transformers, by a kernel of its own before each layer.
    Returns False, without effect, for a model without a list of layers."""
    try:
        layers = decoder_layers(model)
    except ValueError:
        return False
    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(_entering(index), with_kwargs=True)
    count = len(layers)
    layers[-1].register_forward_hook(lambda _, __, out: _keep(count, out[0] if isinstance(out, tuple) else out))
    return True


def _entering(index: int) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _keep(index, args[0] if args else kwargs["hidden_states"])

    return hook


def _keep(layer: int, hidden: Tensor) -> None:
    kept, hidden = kept_at(layer), stream_of(hidden)
    if kept is not None and hidden.shape[2:] == kept.planes.shape[2:]:
        from draftwire_core.engine.model.cuda.kernels.norm import keep_rows  # needs Triton

        keep_rows(hidden[0].contiguous(), kept)
