"""The time of a call on a GPU, without that of its launch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_REPLAYS = 5


def microseconds(run: Callable[[], object], device: torch.device, calls: int) -> float:
    """Returns the time of a call: the median over replays of a graph of some calls; on CPUs the time of one."""
    run()
    run()
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - started)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            run()
    times = []
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / calls)
    return statistics.median(times)
