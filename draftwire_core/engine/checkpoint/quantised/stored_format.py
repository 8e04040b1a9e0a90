"""The base class of the formats of quantised checkpoints."""

from __future__ import annotations

from typing import Protocol

import torch

from draftwire_core.engine.checkpoint.quantised.stored_weight import FloatWeight, IntegerWeight
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

BLOCK = 32
"""Inputs for which an activation has a unit of its own; groups of a weight consist of whole blocks."""


class StoredFormat(Protocol):
    """Finds the weights of linear layers in a checkpoint."""

    def weight(self, layer: str, outputs: int, inputs: int) -> IntegerWeight | FloatWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised.

        Raises ModelLoadError, which names the tensor or field, if it is damaged or not supported.
        """


def checked_group(files: TensorFiles, tensor: str, inputs: int, group: int) -> int:
    """Returns the inputs per group, if a weight with so many inputs can be multiplied. Raises ModelLoadError."""
    if group % BLOCK or inputs % group:
        why = f"has {inputs} inputs in groups of {group}; groups must be whole, of a multiple of {BLOCK} inputs"
        raise files.refusal(tensor, why)
    return group


def input_order(files: TensorFiles, tensor: str, inputs: int, group: int, *, required: bool) -> dict[str, torch.Tensor]:
    """Returns "order", in which the inputs of each group follow each other, int64 [inputs]; nothing if they do already.

    tensor: that of each input's group, which a checkpoint need not have unless it is `required`. Raises ModelLoadError
    if a group has another number of inputs.
    """
    if not required and tensor not in files:
        return {}
    groups = files.tensor(tensor, [(inputs,)], [torch.int32, torch.int64]).long()
    order = groups.argsort(stable=True)
    if not torch.equal(groups[order], torch.arange(inputs) // group):
        raise files.refusal(tensor, f"does not have {group} inputs in each of {inputs // group} groups")
    return {} if torch.equal(order, torch.arange(inputs)) else {"order": order}


def checked_float_group(files: TensorFiles, tensor: str, inputs: int, group: int) -> int:
    """Returns the inputs per scale of a weight of 8-bit floats, whose last group may be shorter. Raises
    ModelLoadError if it cannot be multiplied."""
    if inputs % BLOCK or min(group, inputs) % BLOCK:
        raise files.refusal(tensor, f"has {inputs} inputs in blocks of {group}; both must be multiples of {BLOCK}")
    return min(group, inputs)
