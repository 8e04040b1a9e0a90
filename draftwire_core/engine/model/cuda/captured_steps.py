"""Steps of fixed sizes, on GPUs captured as CUDA graphs, which launch a step's kernels in one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import HostCopy, Wait
from draftwire_core.engine.model.cuda.graph_capture import GraphCapture, HostReadError, NoHostReads
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.rows import Rows
from draftwire_core.engine.sampling.step_draws import StepDraws


class FixedTensors(Protocol):
    """A batch in tensors of one size."""

    @property
    def wanted(self) -> Tensor:
        """The rows whose results the last batch wants, in its order, int64 [wanted]."""


class Together(Protocol):
    """Processes that capture the same graphs at the same time, such as ranks, whose graphs exchange data."""

    def agreed(self, failure: str | None) -> str | None:
        """Reports this process's failure, if any; returns what all processes find: a failure of any, or None."""

    def capturing(self) -> AbstractContextManager[None]:
        """A context in which exchanges may fail without an end of the processes."""


Size = TypeVar("Size", bound=Hashable)
Tensors = TypeVar("Tensors")
Batch = TypeVar("Batch", bound=FixedTensors)
Results = TypeVar("Results")


class CapturedSizes(Generic[Size, Tensors, Results]):
    """Work of some sizes, the tensors of each, and its graph."""

    def __init__(
        self,
        run: Callable[[Tensors], Results],
        sizes: list[Size],
        make: Callable[[Size], Tensors],
        device: torch.device,
    ):
        """run: does the work in tensors of a size. sizes: the largest first, so that later captures fit into memory
        that is already allocated. make: allocates tensors."""
        self.unavailable: str | None = None
        """Reason why the model could not be captured; None if it was, or was not tried."""
        self.replays = True
        """Whether captured steps are replayed; if not, all kernels are launched one by one, for comparisons."""
        self._work = run
        self._sizes = sizes
        self._make = make
        self._device = device
        self._batches: dict[Size, Tensors] = {}
        self._replays: dict[Size, Callable[[], Results]] = {}

    @property
    def captured(self) -> int:
        """Number of sizes whose steps were captured."""
        return len(self._replays)

    def capture(self, together: Together | None = None) -> None:
        """Captures a graph for each size, in one memory pool, since only one runs at a time.

        A model that waits for the device during a pass cannot be captured; then only `unavailable` is set. On CPUs,
        which have no graphs, each step calls the function that would have been captured.

        together: processes that all capture now. If one cannot, none keeps a graph, since a graph's exchanges need the
        same graph at the others.
        """
        self.unavailable = self._capture(together)
        if self.unavailable is not None:
            self.drop()

    def _capture(self, together: Together | None) -> str | None:
        """Captures all sizes, or up to the first that fails; returns why it does."""
        smallest = self._batch(self._sizes[-1])  # before, since its first numbers are copied to the device
        failure: str | None = None
        try:
            with NoHostReads():
                self._work(smallest)
        except HostReadError as error:
            failure = str(error)
        cuda = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device) if cuda else None
        capture = GraphCapture(self._device) if cuda else None
        try:
            for size in self._sizes:
                if together is not None:
                    failure = together.agreed(failure)
                if failure is not None:
                    break
                run = partial(self._work, self._batch(size))
                try:
                    with nullcontext() if together is None else together.capturing():
                        self._replays[size] = run if capture is None else capture.captured(run)
                except torch.OutOfMemoryError:
                    self.drop()
                    raise
                except RuntimeError as error:
                    failure = _cause(error)
            if together is not None:
                failure = together.agreed(failure)
        finally:
            if stream is not None:
                torch.cuda.set_stream(stream)  # a capture that fails leaves the thread on the stream of the capture
        return failure

    def drop(self) -> None:
        """Discards all graphs."""
        self._replays.clear()

    def _results(self, batch: Tensors, size: Size) -> Results:
        """Does the work in filled tensors, by replaying its graph if there is one."""
        replay = self._replays.get(size) if self.replays else None
        return self._work(batch) if replay is None else replay()

    def _batch(self, size: Size) -> Tensors:
        batch = self._batches.get(size)
        if batch is None:
            batch = self._batches[size] = self._make(size)
        return batch


class CapturedSteps(ABC, CapturedSizes[Size, Batch, Rows]):
    """Steps of some sizes."""

    def __init__(
        self,
        run: Callable[[Batch, Tensor | None], Rows],
        sizes: list[Size],
        make: Callable[[Size], Batch],
        device: torch.device,
    ):
        """run: runs the model over a batch and returns the given rows, or all. For the others see CapturedSizes."""
        super().__init__(lambda batch: run(batch, None), sizes, make, device)
        self._run = run
        self.wait: Wait | None = None
        """Waits for what the steps draw, if it is not a matter of this device alone."""

    def forward(self, batch: PackedBatch) -> Rows:
        """Runs one forward pass: writes the rows' keys and values and returns the wanted rows."""
        return self._forward(batch, None)[0]

    def forward_and_draw(self, batch: PackedBatch, draws: StepDraws) -> tuple[Rows, HostCopy]:
        """Runs `forward` and draws tokens in the same graph, if `run` draws; they are then on their way to the host."""
        rows, drawn = self._forward(batch, draws)
        assert drawn is not None, "only for passes that draw"
        return rows, drawn

    @abstractmethod
    def _filled(self, batch: PackedBatch, draws: StepDraws | None) -> tuple[Batch, Size | None]:
        """The tensors with a batch in them, and their size; None for new ones, whose wanted rows alone are computed."""

    def _launched(self, fixed: Batch, batch: PackedBatch) -> None:
        """Queues what is to be done after a pass over tensors that are filled with a batch, and notes that it was
        launched."""

    def _forward(self, batch: PackedBatch, draws: StepDraws | None) -> tuple[Rows, HostCopy | None]:
        fixed, size = self._filled(batch, draws)
        if size is None:
            rows = self._run(fixed, fixed.wanted)
            drawn = self._to_host(rows, draws)
            self._launched(fixed, batch)
            return rows, drawn
        rows = self._results(fixed, size)
        drawn = self._to_host(rows, draws)  # first, since the host waits for this alone
        # Copies, since the next replay overwrites this memory.
        wanted = Rows(*(each.index_select(0, fixed.wanted) for each in rows[:2]))
        self._launched(fixed, batch)
        return wanted, drawn

    def _to_host(self, rows: Rows, draws: StepDraws | None) -> HostCopy | None:
        return None if draws is None or rows.drawn is None else HostCopy(rows.drawn, self.wait)


def _cause(error: BaseException) -> str:
    """The first line of the error that a capture failed with: ending a failed capture raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).strip().partition("\n")[0] or type(error).__name__
