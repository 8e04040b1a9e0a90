"""A drafter of a fleet: its sequences, and the time that reading their prompts takes."""

from __future__ import annotations

from benchmarks.simulation.fleet.drafting_cell import MAX_STEP_ROWS
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from benchmarks.simulation.fleet.request import Request
from benchmarks.simulation.fleet.speculation import prompt_seconds


class Drafter:
    """One drafter service. What it drafts comes from the traces of `drafting_cell`; this class has only its load."""

    def __init__(self, index: int, pair: ModelPairTimes, places: int):
        """places: most open sequences."""
        self.index = index
        self.opened = 0
        """Number of openings in total."""
        self.reading = 0.0
        """Seconds spent reading prompts."""
        self._places = places
        self._cost = pair.draft.cost()
        self._open: set[Request] = set()
        self._reading_from = self._reading_until = 0.0
        self._faults = 0
        """Number of faults under way."""

    @property
    def up(self) -> bool:
        """Whether it drafts."""
        return not self._faults

    @property
    def sequences(self) -> int:
        """The open sequences."""
        return len(self._open)

    @property
    def has_room(self) -> bool:
        """Whether it drafts and can open another sequence."""
        return self.up and len(self._open) < self._places

    def open(self, request: Request, now: float, share: int) -> float:
        """Opens a request; returns when the drafter has caught up with it. Prompts are read one after another.

        share: number of processes on its core, including itself.
        """
        seconds = share * prompt_seconds(self._cost, request.length, MAX_STEP_ROWS)
        if now >= self._reading_until:
            self._reading_from = self._reading_until = now
        self._reading_until += seconds
        self._open.add(request)
        self.opened += 1
        self.reading += seconds
        return self._reading_until

    def reopen_all(self, now: float, share: int) -> None:
        """Reads all prompts in a new process while the old one keeps drafting, as in a swap."""
        for request in tuple(self._open):
            self.open(request, now, share)

    def close(self, request: Request) -> None:
        """Closes a request."""
        self._open.discard(request)

    def share_lost(self, start: float, end: float) -> float:
        """Returns the share of a time that went to reading prompts, so that nothing was drafted."""
        inside = min(end, self._reading_until) - max(start, self._reading_from)
        return inside / (end - start) if inside > 0 else 0.0

    def fail(self) -> list[Request]:
        """Fails, losing everything; returns the requests that it drafted for."""
        lost = sorted(self._open, key=lambda request: request.number)
        self._open.clear()
        self._faults += 1
        self._reading_from = self._reading_until = 0.0
        return lost

    def repair(self) -> None:
        """Ends a failure."""
        self._faults -= 1
