"""Networks in checkpoints of their own that draft in the verifier: their options, and the target's weights they use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.drafters.features.draft_network import EMBEDDING, HEAD, ConfigT, DraftNetwork, TargetShape
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Options that all such drafters have."""

    kind: ClassVar[str]
    """Kind of checkpoint, as error messages name it."""
    model: str = ""
    """Directory or hub id of a checkpoint for the target; required."""
    window: int = 0
    """Last tokens of a text that it reads when it begins; 0 for all."""

    def __post_init__(self) -> None:
        if self.window < 0:
            raise FieldError("window", f"must be at least 0, got {self.window}")
        if not self.model:
            raise FieldError("model", f"must be given: the directory or hub id of {self.kind} checkpoint")


class Lent(nn.Module):
    """A module of the target, used without being a part of this model."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._module = (module,)  # in a tuple, so that it is not registered

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Runs the module."""
        lent: torch.Tensor = self._module[0](inputs)
        return lent


class UnscaledEmbedding(Lent):
    """The target's embedding without the factor of its vectors, which is in its module in models such as Gemma."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        scale = getattr(module, "scalar_embed_scale", None) or getattr(module, "scale", None)
        self._factor = None if scale is None else 1 / scale

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: ids [...] -> vectors [..., hidden]"""
        vectors = super().forward(inputs)
        return vectors if self._factor is None else vectors * self._factor


class LentHead(Lent):
    """The target's output head."""

    def __init__(self, module: nn.Module, outputs: int, inputs: int):
        super().__init__(module)
        self.out_features, self.in_features = outputs, inputs


def network_of(
    method: str,
    source: str,
    target: PackedModel,
    hub: bool,
    load: Callable[[Path, TargetShape, torch.dtype], DraftNetwork[ConfigT]],
) -> tuple[str, DraftNetwork[ConfigT]]:
    """Returns the name and the network of a checkpoint, complete with the target's weights that it shares.

    method: for errors. source: directory or hub id. hub: whether it may be a hub id. load: reads a directory. Raises
    ModelLoadError.
    """
    check_tapped(method, target)
    checkpoint = Checkpoint.find(source, hub=hub)
    if checkpoint.gguf is not None:
        raise ModelLoadError(f"model {source}: a checkpoint for {method} is a directory, not a GGUF file")
    shape = TargetShape(target.layers, target.hidden_size, target.vocab_size, target.architecture)
    with load_errors(f"model {source}"):
        network = load(checkpoint.directory, shape, target.dtype)
    if EMBEDDING in network.lacking:
        lent = UnscaledEmbedding if getattr(network.config, "unscaled", False) else Lent
        network.model.set_input_embeddings(lent(target.model.get_input_embeddings()))
    if HEAD in network.lacking:
        head = target.model.get_output_embeddings()
        network.model.set_output_embeddings(LentHead(head, target.vocab_size, target.hidden_size))
    config = network.model.config
    config.max_position_embeddings = max(config.max_position_embeddings, target.context_length)
    return checkpoint.name, network.to(target.device)


def check_tapped(method: str, target: PackedModel) -> None:
    """Raises ModelLoadError if passes of a target cannot have the taps that a method needs."""
    if not target.can_be_tapped:
        raise ModelLoadError(
            f"{method} needs a target whose layers are a list, and which is not split among ranks (--tensor-parallel 1)"
        )
