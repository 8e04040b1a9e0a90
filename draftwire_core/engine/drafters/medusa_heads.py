"""Medusa's heads: their computation, and reading and writing of the published layout.

A head guesses one further token from the target's last hidden state alone. A directory of heads has a `config.json` and
the tensors `HEAD.LAYER.linear.weight`, `HEAD.LAYER.linear.bias` and `HEAD.LAYERS.weight`, like those of
https://github.com/FasterDecoding/Medusa.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.checkpoint.loose_tensors import read_tensors, tensor_of, write_tensors
from draftwire_core.engine.checkpoint.plain_files import check_directory, json_object
from draftwire_core.engine.model.packed_model import ModelLoadError

_CONFIG = "config.json"
_SAFETENSORS, _PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
_PREFIX = "medusa_head."
_MOST_HEADS, _MOST_LAYERS = 64, 16


class ResBlock(nn.Module):
    """A linear layer with a residual connection."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Maps states [..., hidden] to [..., hidden]."""
        return states + nn.functional.silu(self.linear(states))


class MedusaHeads(nn.ModuleList):
    """The heads. Head i, from 0, guesses the token i + 2 places after the one whose hidden state it gets."""

    def __init__(self, heads: int, layers: int, hidden_size: int, vocab_size: int):
        super().__init__(
            nn.Sequential(
                *(ResBlock(hidden_size) for _ in range(layers)), nn.Linear(hidden_size, vocab_size, bias=False)
            )
            for _ in range(heads)
        )
        self.layers = layers
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size

    def forward(self, states: torch.Tensor, asked: int) -> torch.Tensor:
        """Maps states [rows, hidden] to the first `asked` heads' logits [asked * rows, vocabulary], head after head."""
        return torch.cat([head(states) for head in islice(self, asked)])

    def save(self, directory: Path, base: str, dtype: torch.dtype) -> None:
        """Writes the published layout. base: name of the target, for the configuration. dtype: of the tensors. Raises
        OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        config = {"medusa_num_heads": len(self), "medusa_num_layers": self.layers, "base_model_name_or_path": base}
        (directory / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in self.state_dict().items()}
        write_tensors(directory / _SAFETENSORS, tensors, directory / _CONFIG)


def load_heads(directory: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> MedusaHeads:
    """Reads a directory of heads without running any code in it. Raises ModelLoadError."""
    place = Path(directory)
    if not place.is_dir():
        raise ModelLoadError(f"heads {directory}: no such directory")
    with load_errors(f"heads {directory}"):
        check_directory(place)
        heads, layers = _read_config(place)
        tensors = {
            name.removeprefix(_PREFIX): tensor for name, tensor in read_tensors(place, _SAFETENSORS, _PICKLE).items()
        }
        vocab_size, hidden_size = _sizes(tensors, layers)
        with torch.device("meta"):
            made = MedusaHeads(heads, layers, hidden_size, vocab_size)
        wanted = {name: _checked(name, tensors, tuple(value.shape)) for name, value in made.state_dict().items()}
        # A file may hold more heads than its configuration names; the others are ignored.
        strange = sorted(name for name in tensors if name not in wanted and not _is_of_another(name, heads))
        if strange:
            raise ValueError(f"tensor {strange[0]} is not supported")
    made.load_state_dict({name: tensor.to(device, dtype) for name, tensor in wanted.items()}, assign=True)
    made.requires_grad_(False).eval()
    return made


def _is_of_another(name: str, heads: int) -> bool:
    """Whether a tensor belongs to a head after the first ones."""
    head = name.partition(".")[0]
    return head.isascii() and head.isdigit() and int(head) >= heads


def _read_config(place: Path) -> tuple[int, int]:
    """Returns the number of heads and of layers in each. Raises ValueError and OSError."""
    config = json_object(place / _CONFIG)
    numbers = []
    for name, least, most in (("medusa_num_heads", 1, _MOST_HEADS), ("medusa_num_layers", 0, _MOST_LAYERS)):
        value = config.get(name)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{_CONFIG}: {name} must be a whole number from {least} to {most}, got {value!r}")
        numbers.append(value)
    return numbers[0], numbers[1]


def _sizes(tensors: dict[str, torch.Tensor], layers: int) -> tuple[int, int]:
    """Returns vocabulary and hidden size, from the first head's last layer. Raises ValueError."""
    name = f"0.{layers}.weight"
    if name not in tensors:
        raise ValueError(f"tensor {name} is missing")
    shape = tuple(tensors[name].shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"tensor {name} has shape {shape}, expected [vocabulary, hidden size]")
    return shape[0], shape[1]


def _checked(name: str, tensors: dict[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    tensor = tensor_of(name, tensors, shape)
    if not tensor.is_floating_point():
        raise ValueError(f"tensor {name} has dtype {str(tensor.dtype).removeprefix('torch.')}, not floating point")
    return tensor
