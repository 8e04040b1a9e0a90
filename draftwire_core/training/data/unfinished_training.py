"""An interrupted training on disk, and what decides whether a later process may resume it."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftwire_core.training.data.texts import Windows

_CHECKPOINT = "checkpoint.pt"
_WARM_UP = 0.05
"""Share of the steps in which the learning rate rises."""


class CheckpointMismatch(Exception):
    """The directory holds the checkpoint of another training."""


class UnfinishedTraining:
    """The checkpoint of a training in its output directory."""

    def __init__(self, directory: Path, identity: str, model: nn.Module, optimizer: torch.optim.Optimizer):
        """identity: see `identity_of`. model, optimizer: their states are saved and restored."""
        self._path = directory / _CHECKPOINT
        self._identity = identity
        self._model = model
        self._optimizer = optimizer
        self.damaged = False
        """Whether `resume` has found a damaged checkpoint, which the next one replaces."""

    def save(self, step: int) -> None:
        """Writes the checkpoint after a step. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": self._identity,
            "step": step,
            "heads": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        write_whole(self._path, state)

    def resume(self) -> int:
        """Restores the states; returns the steps taken, 0 without a whole checkpoint. Raises CheckpointMismatch."""
        if not self._path.exists():
            return 0
        self.damaged = not is_whole(self._path)
        if self.damaged:
            return 0
        state: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
        if state["identity"] != self._identity:
            raise CheckpointMismatch(
                f"{self._path} belongs to a training with other settings, texts or target: resume with those, or "
                "remove it"
            )
        self._model.load_state_dict(state["heads"])
        self._optimizer.load_state_dict(state["optimizer"])
        step: int = state["step"]
        return step

    def end(self) -> None:
        """Removes the checkpoint."""
        self._path.unlink(missing_ok=True)


def write_whole(path: Path, state: dict[str, Any]) -> None:
    """Writes a file of torch, in place of an earlier one once it is complete. Raises OSError."""
    new = path.with_name(path.name + ".new")
    try:
        torch.save(state, new)
        new.replace(path)
    except (OSError, RuntimeError) as error:  # torch's own, for a full disk for example
        new.unlink(missing_ok=True)  # a full disk must not stay full
        raise OSError(f"{path} cannot be written, perhaps for lack of room: {error}") from error


def is_whole(path: Path) -> bool:
    """Whether a file of torch ends as such files do. After a crash of the machine its end may be missing."""
    return zipfile.is_zipfile(path)


def rate(step: int, steps: int) -> float:
    """Returns the learning rate of a step as a share of the peak: it rises during the warm-up and decays to zero."""
    warm_up = max(1.0, _WARM_UP * steps)
    return min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / steps))


def identity_of(training: Any, windows: Windows, output: torch.Tensor) -> str:
    """Returns a key that differs if two trainings would differ.

    training: a dataclass of options. output: the weight of the target's output head.
    """
    parts = hashlib.sha256(repr(dataclasses.astuple(training)).encode())
    for tensor in (windows.labels, output.detach().float().cpu()):
        parts.update(tensor.numpy().tobytes())
    return parts.hexdigest()
