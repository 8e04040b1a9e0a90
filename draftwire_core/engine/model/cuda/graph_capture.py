"""Captures passes as CUDA graphs that share memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

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
