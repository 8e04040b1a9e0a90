"""Captures of CUDA graphs, with a stand-in for torch's own that records what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from draftwire_core.engine.model.cuda import graph_capture
from draftwire_core.engine.model.cuda.captured_steps import CapturedSizes
from draftwire_core.engine.model.cuda.graph_capture import GraphCapture

DEVICE = torch.device("cuda:0")


class Stream:
    """A stream of the stand-in."""

    def __init__(self, _: object = None) -> None:
        pass

    def wait_stream(self, _: object) -> None:
        """Does nothing: work of the stand-in is done at once."""


class Cuda:
    """What torch.cuda was asked for."""

    def __init__(self) -> None:
        self.current: object = Stream()
        self.captures: list[tuple[object, object, str]] = []
        """Pool, stream and error mode of each capture."""
        self.replayed: list[object] = []

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        """As torch.cuda.stream."""
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self, graph: object, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        """As torch.cuda.graph, which does not restore the stream if what it captures fails."""
        self.captures.append((pool, stream, capture_error_mode))
        before, self.current = self.current, stream
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError("capture_end failed") from error
        self.current = before

    def set_stream(self, stream: object) -> None:
        """As torch.cuda.set_stream."""
        self.current = stream


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    graph_capture._stream.cache_clear()

    class Graph:
        def replay(self) -> None:
            found.replayed.append(self)

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: found.current)
    for name in ("stream", "graph", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(found, name))
    return found


def test_all_graphs_share_a_stream_and_a_pool(cuda: Cuda) -> None:
    """Torch gives no memory of a pool to another stream, and cuBLAS keeps a workspace for each, also when the model is
    gone."""
    capture = GraphCapture(DEVICE)
    replays = [capture.captured(lambda number=number: number) for number in range(3)]  # type: ignore[misc]
    again = GraphCapture(DEVICE)  # of another model, such as one that takes the place of the first
    assert again._stream is capture._stream and again._pool is not capture._pool
    assert [replay() for replay in replays] == [0, 1, 2] and len(set(cuda.replayed)) == 3
    assert len(cuda.captures) == 3 and len(set(cuda.captures)) == 1
    assert cuda.captures[0][2] == "thread_local"  # another thread may be drafting meanwhile


def test_a_capture_that_fails_leaves_the_stream_as_it_was_and_says_why(cuda: Cuda) -> None:
    before = cuda.current
    runs: list[int] = []

    def run(size: Any) -> int:
        runs.append(size)
        if size == 1 and cuda.current is not before and len(cuda.captures) == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        return int(size)

    sizes: CapturedSizes[int, int, int] = CapturedSizes(run, [4, 1], int, DEVICE)
    sizes.capture()
    assert sizes.unavailable == "operation not permitted when stream is capturing"
    assert sizes.captured == 0 and cuda.current is before
    assert sizes._results(4, 4) == 4 and not cuda.replayed  # work goes on without graphs


class Others:
    """Another process that captures at the same time, one of whose captures fails."""

    def __init__(self, failing: int) -> None:
        """failing: the round in which it does, counted from 0."""
        self._failing = failing
        self.told: list[str | None] = []
        self.inside = False

    def agreed(self, failure: str | None) -> str | None:
        """As Together.agreed: its failure comes first."""
        self.told.append(failure)
        return "rank 1: no graph" if len(self.told) > self._failing else failure

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """As Together.capturing."""
        self.inside = True
        yield
        self.inside = False


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_none_keeps_a_graph_if_a_capture_fails_elsewhere(failing: int, cuda: Cuda) -> None:
    others, captured_within = Others(failing), []

    def run(size: Any) -> int:
        if len(cuda.captures) > len(captured_within):
            captured_within.append(others.inside)
        return int(size)

    sizes: CapturedSizes[int, int, int] = CapturedSizes(run, [4, 1], int, DEVICE)
    sizes.capture(others)
    assert sizes.unavailable == "rank 1: no graph" and sizes.captured == 0
    told = [None] * (failing + 1) + ["rank 1: no graph"] * (failing < 2)  # at the end of all sizes once more
    assert others.told == told and captured_within == [True] * failing
    sizes.capture(Others(failing=3))
    assert sizes.unavailable is None and sizes.captured == 2
