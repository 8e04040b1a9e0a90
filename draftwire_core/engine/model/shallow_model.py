"""Views of a decoder's first layers, with its last norm and output head, that share all weights with it."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from draftwire_core.engine.errors import FieldError


def check_layers(count: int, layers: int) -> None:
    """Raises FieldError unless `count` is at least 1 and below `layers`."""
    if not 1 <= count < layers:
        raise FieldError("layers", f"must be from 1 to {layers - 1}, since the model has {layers} layers, got {count}")


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """Returns a model of the first `count` layers of `model`, which is not changed.

    Modules are shared, except the ancestors of the list of layers. Raises ValueError if there is no such list.
    """
    *parents, last = _path_of_layers(model).split(".")
    view = holder = _copied(model)
    for name in parents:
        child = _copied(getattr(holder, name))
        holder._modules[name] = child
        holder = child
    holder._modules[last] = nn.ModuleList(list(getattr(holder, last))[:count])
    return view


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Returns the list of a model's decoder layers. Raises ValueError if there is no such list."""
    layers: nn.ModuleList = model.get_submodule(_path_of_layers(model))
    return layers


def stream_of(states: Tensor) -> Tensor:
    """Returns the states that enter or leave a layer, [texts, rows, hidden]: of several streams, as in Gemma 3n, the
    first one, which its layers compute on."""
    return states if states.dim() == 3 else states[0]


def keep_first_layers(config: PretrainedConfig, count: int) -> None:
    """Reduces a model's configuration to its first `count` layers, in place. Raises FieldError."""
    text = config.get_text_config(decoder=True)
    layers = int(text.num_hidden_layers)
    check_layers(count, layers)
    if getattr(text, "hidden_size_per_layer_input", None):
        raise FieldError(
            "layers", "must be left out: the model has an embedding of all its layers, which cannot be read in part"
        )
    shared = getattr(text, "num_kv_shared_layers", None)
    if shared:  # the last layers, which use keys and values of earlier ones
        text.num_kv_shared_layers = max(0, count - (layers - shared))
    text.num_hidden_layers = count
    for name, value in list(vars(text).items()):
        if "layer" in name and isinstance(value, list) and len(value) == layers:  # one entry per layer: layer_types
            setattr(text, name, value[:count])


def _path_of_layers(model: PreTrainedModel) -> str:
    layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    paths: list[str] = [
        name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == layers
    ]
    if not paths:
        raise ValueError(f"{type(model).__name__} has no list of {layers} layers")
    # The shallowest list: a layer may itself hold a list of that length.
    return min(paths, key=lambda path: path.count("."))


def _copied(module: nn.Module) -> nn.Module:
    """A shallow copy of a module with its own table of submodules."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
