"""Captures passes as CUDA graphs that share memory, and finds passes that cannot be captured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Results = TypeVar("Results")

_WARM_UPS = 2
"""Runs before a capture: libraries choose kernels and allocate memory in the first ones."""


_CAPTURING = threading.Lock()
"""Held during a capture: models that are loaded at the same time share the stream."""


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures on a device: cuBLAS keeps a workspace for each stream that it has ever seen, 32 MiB on
    Hopper."""
    return torch.cuda.Stream(device)


class GraphCapture:
    """Captures graphs of one device in one memory pool, for graphs of which one runs at a time.

    All on one stream: torch gives no memory of the pool to another stream.
    """

    def __init__(self, device: torch.device):
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
        self._stream = _stream(device)

    def captured(self, run: Callable[[], Results]) -> Callable[[], Results]:
        """Captures `run`; returns a function that replays it on the same tensors."""
        with _CAPTURING, torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    run()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # thread_local: another thread may be drafting with another model meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                results = run()

        def replay() -> Results:
            graph.replay()
            return results

        return replay


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

    A CUDA graph cannot wait either, but a capture that fails leaves torch's streams and memory pools in disorder, and
    torch's own check is for all threads at once. On CPUs this finds what would wait on a GPU, except copies between
    the two.
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
