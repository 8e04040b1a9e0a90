"""EAGLE-3 in the verifier: `local:eagle3`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from speculative_engine.checkpoint.checkpoint import Checkpoint
from speculative_engine.drafters.eagle.eagle_files import Eagle, TargetShape, load_eagle
from speculative_engine.drafters.features.local_feature_drafter import (
    Lent,
    LentHead,
    LocalFeatureDrafter,
    weights_of_layers,
)
from speculative_engine.drafters.features.trial_pass import try_out
from speculative_engine.field_error import FieldError
from speculative_engine.model.linear.packed_linear import PackedLinear, replace_linears
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.model.taps import SlotStates, Tap


@dataclass(frozen=True, slots=True)
class EagleOptions:
    """Options of `local:eagle3`."""

    model: str = ""
    """Directory or hub id of an EAGLE-3 checkpoint for the target; required."""

    def __post_init__(self) -> None:
        if not self.model:
            raise FieldError("model", "must be given: the directory or hub id of an EAGLE-3 checkpoint")


def eagle3_drafter(options: EagleOptions, target: PackedModel, hub: bool = True) -> LocalFeatureDrafter:
    """Makes the drafter `local:eagle3`. hub: whether its model may be a hub id. Raises ModelLoadError."""
    if not target.can_be_tapped:
        raise ModelLoadError("local:eagle3 needs a target on a CPU, in one process and without --reproducible")
    checkpoint = Checkpoint.find(options.model, hub=hub)
    if checkpoint.gguf is not None:
        raise ModelLoadError(f"model {options.model}: an EAGLE-3 checkpoint is a directory, not a GGUF file")
    shape = TargetShape(target.layers, target.hidden_size, target.vocab_size, target.architecture)
    try:
        eagle = load_eagle(checkpoint.directory, shape, target.dtype)
    except (ValueError, OSError) as error:
        raise ModelLoadError(f"model {options.model}: {error}") from error
    _lend(eagle, target)
    eagle.model.config.max_position_embeddings = max(eagle.model.config.max_position_embeddings, target.context_length)
    model = PackedModel(eagle.model, target.pool.capacity, name=checkpoint.name, row_exact=False)
    try_out(model)
    return _drafter(eagle, model, target)


def _drafter(eagle: Eagle, model: PackedModel, target: PackedModel) -> LocalFeatureDrafter:
    """Returns the drafter. model: the network of `eagle`, packed."""
    weights = sum(parameter.numel() for parameter in eagle.mapping.parameters())
    rows = model.vocab_size * model.hidden_size + weights
    share = min(1.0, (rows + weights_of_layers(model)) / target.parameters)
    feed_back: nn.Module = model.model.model.norm if eagle.config.norm_output else nn.Identity()
    replace_linears(eagle.mapping, PackedLinear)
    features = SlotStates(target.pool.capacity, model.hidden_size, model.dtype)
    tap = Tap(eagle.aux_layers, eagle.mapping, features)
    return LocalFeatureDrafter(model, tap, feed_back, share, eagle.target_ids)


def _lend(eagle: Eagle, target: PackedModel) -> None:
    """Fills in what the checkpoint leaves to the target."""
    if "embed_tokens.weight" in eagle.lacking:
        eagle.model.set_input_embeddings(Lent(target.model.get_input_embeddings()))
    if "lm_head.weight" in eagle.lacking:
        head = target.model.get_output_embeddings()
        eagle.model.set_output_embeddings(LentHead(head, target.vocab_size, target.hidden_size))
