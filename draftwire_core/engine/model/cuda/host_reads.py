"""Finds out whether a pass waits for the device, which a CUDA graph cannot, without capturing it.

A capture that fails leaves torch's streams and memory pools in disorder, and torch's own check for synchronising calls
is for all threads at once, of which another may be in the middle of a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS = {
    "_local_scalar_dense",
    "_unique2",
    "argwhere",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "nonzero_numpy",
    "one_hot",
    "unique_consecutive",
    "unique_dim",
}
"""Operations whose results the host must know before it goes on."""

_COPIES = {"_copy_from", "_to_copy", "copy", "copy_", "cpu", "to"}
_REPEATS = (torch.ops.aten.repeat_interleave.Tensor, torch.ops.aten.repeat_interleave.self_Tensor)


class HostReadError(Exception):
    """Raised for an operation that waits for the device; the message names it."""


class NoHostReads(TorchDispatchMode):
    """A context in which this thread's operations may not wait for the device. They raise HostReadError.

    On CPUs it finds what would wait on a GPU, except copies between the two.
    """

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, unless it waits."""
        name = call.overloadpacket.__name__
        if (
            name in _READS
            or (name == "where" and len(args) == 1)
            or (call in _REPEATS and (kwargs or {}).get("output_size") is None)
        ):
            raise HostReadError(f"{name} waits for the device")
        if name in ("index", "index_put", "index_put_") and any(
            each.dtype in (torch.bool, torch.uint8) for each in _tensors(args[1])
        ):
            raise HostReadError(f"{name} by a mask waits for the device")
        out = call(*args, **(kwargs or {}))
        if name in _COPIES:
            places = {each.device.type for each in _tensors((args, kwargs, out)) if each.dim()}
            if len(places) > 1:
                raise HostReadError(f"a copy between {' and '.join(sorted(places))} waits for the device")
        return out


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
