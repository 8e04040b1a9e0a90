"""The recurrent head: its computation, and its checkpoint.

From the target's last hidden state and the next token, the head guesses the last hidden state that the target will have
behind that token, and goes on from its own guess. A linear map, found by ridge regression, gives most of it; one SwiGLU
layer adds to it. Logits are products with rows of the target's own output head, those of a few thousand tokens.

Compare Hydra (Ankner et al., arXiv 2402.05109), whose heads are sequential as well, and ReDrafter (Zhang et al., arXiv
2403.09919), a recurrent head whose states are its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import torch
from torch import nn

from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.checkpoint.loose_tensors import read_tensors, tensor_of, write_tensors
from draftwire_core.engine.checkpoint.plain_files import check_directory, json_object
from draftwire_core.engine.errors import ModelLoadError

_CONFIG, _TENSORS = "config.json", "model.safetensors"
_ARCHITECTURE = "DraftwireRecurrentHead"
_SIZES = ("hidden_size", "inner_size", "vocab_size", "drafted_tokens")
_MOST = 1 << 24


class RecurrentHead(nn.Module):
    """The network. It holds rows of the target's output head, but not the target's embedding."""

    def __init__(self, hidden_size: int, inner_size: int, vocab_size: int, drafted_tokens: int):
        """hidden_size, vocab_size: the target's. inner_size: of the SwiGLU layer. drafted_tokens: that can be drafted.

        The SwiGLU layer adds nothing at first.
        """
        super().__init__()
        self.hidden_size, self.inner_size, self.vocab_size = hidden_size, inner_size, vocab_size
        self.enter = nn.Linear(2 * hidden_size, hidden_size + 2 * inner_size)
        """The linear map, and the gate and the values of the SwiGLU layer, which have the same inputs."""
        self.down = nn.Linear(inner_size, hidden_size, bias=False)
        nn.init.zeros_(self.down.weight)
        self.output = nn.Linear(hidden_size, drafted_tokens, bias=False).requires_grad_(False)
        self.register_buffer("token_ids", torch.zeros(drafted_tokens, dtype=torch.int64))

    @property
    def drafted_tokens(self) -> int:
        """Number of tokens that can be drafted."""
        return int(self.output.out_features)

    def forward(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Returns the states behind one more token each.

        states: the target's last hidden states, or the head's own. embeddings: the target's, of the tokens drawn from
        these states. All [rows, hidden].
        """
        return self.advance(inputs_of(states, embeddings))

    def advance(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps what `inputs_of` returns, [rows, 2 * hidden], to states [rows, hidden]."""
        mapped, gate, values = self.enter(inputs).split([self.hidden_size, self.inner_size, self.inner_size], dim=-1)
        added: torch.Tensor = self.down(nn.functional.silu(gate) * values)
        return added + mapped

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Maps states [rows, hidden] to logits of the tokens `token_ids`, [rows, drafted tokens]."""
        found: torch.Tensor = self.output(states)
        return found

    def draft_with(self, token_ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Replaces the tokens that can be drafted. token_ids: int64 [tokens]. rows: theirs in the target's output head,
        [tokens, hidden]."""
        self.token_ids = token_ids
        self.output = nn.Linear(self.hidden_size, len(token_ids), bias=False, device="meta")
        self.output.weight = nn.Parameter(rows, requires_grad=False)

    def save(self, directory: Path, base: str, dtype: torch.dtype) -> None:
        """Writes a checkpoint. base: name of the target. dtype: of the weights. Raises OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        sizes = {name: getattr(self, name) for name in _SIZES}
        config = {"architectures": [_ARCHITECTURE], "base_model_name_or_path": base} | sizes
        (directory / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tensors = {
            name: (tensor.detach() if name == "token_ids" else tensor.detach().to(dtype)).cpu().contiguous()
            for name, tensor in self.state_dict().items()
        }
        write_tensors(directory / _TENSORS, tensors, directory / _CONFIG)

    @classmethod
    def load(cls, directory: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> Self:
        """Reads a checkpoint. Raises ModelLoadError."""
        place = Path(directory)
        if not place.is_dir():
            raise ModelLoadError(f"model {directory}: no such directory")
        with load_errors(f"model {directory}"):
            check_directory(place)
            sizes = _read_config(place)
            tensors = read_tensors(place, _TENSORS, "pytorch_model.bin")
            with torch.device("meta"):
                made = cls(*sizes)
            wanted = {name: tensor_of(name, tensors, tuple(each.shape)) for name, each in made.state_dict().items()}
            token_ids = wanted.pop("token_ids")
            _check(token_ids, made.vocab_size)
            for name, tensor in wanted.items():
                if not tensor.is_floating_point():
                    raise ValueError(f"tensor {name} has dtype {str(tensor.dtype).removeprefix('torch.')}, not a float")
        weights = {name: tensor.to(device, dtype) for name, tensor in wanted.items()}
        made.load_state_dict(weights | {"token_ids": token_ids.to(device)}, assign=True)
        made.requires_grad_(False).eval()
        return made


def inputs_of(states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
    """Returns the head's inputs [rows, 2 * hidden]: both parts with a root mean square of 1, so that neither the scale
    of the target's embedding nor the growth of the head's own states matters."""
    return torch.cat([_normed(states), _normed(embeddings)], dim=-1)


def _normed(vectors: torch.Tensor) -> torch.Tensor:
    wide = vectors.float()
    return (wide * wide.square().mean(-1, keepdim=True).add(1e-6).rsqrt()).to(vectors.dtype)


def _read_config(place: Path) -> list[int]:
    """Returns the sizes of the network. Raises ValueError and OSError."""
    config = json_object(place / _CONFIG)
    if config.get("architectures") != [_ARCHITECTURE]:
        raise ValueError(f"{_CONFIG}: architectures must be {[_ARCHITECTURE]}, got {config.get('architectures')!r}")
    sizes = []
    for name in _SIZES:
        value = config.get(name)
        if type(value) is not int or not 1 <= value <= _MOST:
            raise ValueError(f"{_CONFIG}: {name} must be a whole number from 1 to {_MOST}, got {value!r}")
        sizes.append(value)
    return sizes


def _check(token_ids: torch.Tensor, vocab_size: int) -> None:
    """Raises ValueError for tokens that a target with this vocabulary lacks, or that occur more than once."""
    if token_ids.dtype != torch.int64:
        raise ValueError(f"tensor token_ids has dtype {str(token_ids.dtype).removeprefix('torch.')}, not int64")
    if int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size:
        raise ValueError(f"tensor token_ids must have ids from 0 to {vocab_size - 1}")
    if len(token_ids.unique()) != len(token_ids):
        raise ValueError("tensor token_ids has an id more than once")
