"""The base class of the formats of quantised checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from draftwire_core.engine.checkpoint.quantised.stored_weight import StoredWeight
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

BLOCK = 32
"""Inputs for which an activation has a unit of its own; groups of a weight consist of whole blocks."""
_NO_EXPONENT = 255
"""The exponent of e8m0 that stands for no number."""
KV_SCALES = r"\.([kvq]_(scale|zero_point)|prob_scale|[kv]_proj\.output_scale)$"
"""Names of tensors that scale the keys and values of a cache of few bits, which the cache here does not need."""


class StoredFormat(Protocol):
    """Finds the weights of linear layers in a checkpoint."""

    def weight(self, layer: str, outputs: int, inputs: int) -> StoredWeight | None:
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


def checked_scales(
    files: TensorFiles, tensor: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype] = FLOATS
) -> torch.Tensor:
    """Returns a tensor of scales. Raises ModelLoadError if one of them is no number or infinite, too."""
    found = files.tensor(tensor, shapes, dtypes)
    if not found.float().isfinite().all():
        raise files.refusal(tensor, "has scales that are no finite numbers")
    return found


def exponents(files: TensorFiles, tensor: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor of scales that are powers of two (e8m0), as uint8. Raises ModelLoadError."""
    found = files.tensor(tensor, [shape], [torch.uint8, torch.float8_e8m0fnu]).view(torch.uint8)
    if (found == _NO_EXPONENT).any():
        raise files.refusal(tensor, "has scales that are no finite numbers")
    return found


def pass_over_input_scales(files: TensorFiles, layer: str, names: Sequence[str], *, required: bool) -> None:
    """Reads past the scales of a layer's inputs, which a product of few-bit inputs would need, one for all inputs.

    required: whether the first of them must be there. Raises ModelLoadError for a scale that is damaged.
    """
    for place, name in enumerate(names):
        tensor = f"{layer}.{name}"
        if tensor in files or (required and place == 0):
            checked_scales(files, tensor, [(1,), (), (1, 1)], [*FLOATS, torch.int8, torch.float8_e4m3fn])
