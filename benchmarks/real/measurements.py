"""Requests of several ways, task by task and run by run, and the figures that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.harness.rates import acceptance_length
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Batch, Request

LLAMA = "llama.cpp"
"""Beginning of the names of llama.cpp's ways."""


@dataclass
class Measurements:
    """The requests of one target at one temperature."""

    tasks: Sequence[str]
    """The tasks, in the order of the tables."""
    requests: dict[tuple[str, int, str], list[Request]] = field(default_factory=dict)
    """Requests by way, run and task."""

    def add(self, way: str, run: int, task: str, request: Request) -> None:
        """Adds a request."""
        self.requests.setdefault((way, run, task), []).append(request)

    def drop(self, way: str) -> None:
        """Forgets a way that failed."""
        for key in [key for key in self.requests if key[0] == way]:
            del self.requests[key]

    @property
    def ways(self) -> list[str]:
        """The ways, in the order in which they were added first."""
        return list(dict.fromkeys(way for way, _, _ in self.requests))

    @property
    def runs(self) -> list[int]:
        """The runs."""
        return sorted({run for _, run, _ in self.requests})

    def rate(self, way: str, run: int, task: str) -> float:
        """Returns the tokens per second after the first ones of each answer. Raises ZeroDivisionError if none of the
        answers has further ones."""
        return _rate(self.requests[way, run, task])

    def speed_up(self, way: str, task: str, over: str = "plain") -> Spread:
        """Returns a way's rate over another one's in the same run."""
        runs = self.runs
        return Spread.ratio([self.rate(way, run, task) for run in runs], [self.rate(over, run, task) for run in runs])

    def speed_up_of_answers(self, way: str, task: str, over: str = "plain") -> Spread:
        """Returns a way's rate over another one's, answer by answer: the median and range of all answers."""
        pairs = [
            pair
            for run in self.runs
            for pair in zip(self.requests[way, run, task], self.requests[over, run, task], strict=True)
        ]
        return Spread.of([_rate([ours]) / _rate([theirs]) for ours, theirs in pairs])

    def mean_speed_up(self, way: str, over: str = "plain") -> Spread:
        """Returns the geometric mean of the speed-ups of all tasks in the same run."""
        return self._mean_ratio(dict.fromkeys(self.tasks, (way, over)))

    def _mean_ratio(self, pairs: Mapping[str, tuple[str, str]]) -> Spread:
        """Returns the geometric mean over tasks of the rate of one way over that of another in the same run. pairs: the
        two by task."""
        runs = []
        for run in self.runs:
            ratios = [self.rate(way, run, task) / self.rate(over, run, task) for task, (way, over) in pairs.items()]
            runs.append(math.prod(ratios) ** (1 / len(ratios)))
        return Spread.of(runs)

    def acceptance_length(self, way: str, *tasks: str) -> float:
        """Returns the tokens per verification, over some tasks or all of them."""
        of = tasks or tuple(self.tasks)
        found = [each for run in self.runs for task in of for each in self.requests[way, run, task]]
        return acceptance_length([Batch((each,)) for each in found])

    def first_token_ms(self, way: str) -> Spread:
        """Returns the milliseconds to the first token: the median over all prompts, run by run."""
        return Spread.of(
            [
                median(1e3 * each.first_token_seconds for task in self.tasks for each in self.requests[way, run, task])
                for run in self.runs
            ]
        )

    def figures(self, name: str) -> dict[str, object]:
        """Returns all figures. name: target and temperature."""
        found: dict[str, object] = {}
        for way in self.ways:
            for task in self.tasks:
                rates = [self.rate(way, run, task) for run in self.runs]
                found[f"{name}, {way}, {task}: tokens/s"] = Spread.of(rates)
                if way != "plain":
                    found[f"{name}, {way}, {task}: speed-up"] = self.speed_up(way, task)
                if self._speculates(way):
                    found[f"{name}, {way}, {task}: acceptance length"] = self.acceptance_length(way, task)
            found[f"{name}, {way}: first token, ms"] = self.first_token_ms(way)
            if way != "plain":
                found[f"{name}, {way}: speed-up, mean of the tasks"] = self.mean_speed_up(way)
            if self._speculates(way):
                found[f"{name}, {way}: acceptance length"] = self.acceptance_length(way)
        return found | self._figures_beside_llama(name)

    def _figures_beside_llama(self, name: str) -> dict[str, object]:
        """Returns the rates over llama.cpp's: plain over plain, and the best speculation over the best of llama.cpp's
        ways, task by task."""
        theirs = [way for way in self.ways if way.startswith(LLAMA)]
        ours = [way for way in self.ways if way not in ("plain", *theirs)]
        found: dict[str, object] = {}
        if f"{LLAMA} plain" in theirs:
            found[f"{name}: plain / {LLAMA} plain"] = self.mean_speed_up("plain", f"{LLAMA} plain")
        if theirs and ours:
            best = {task: (self._fastest(ours, task), self._fastest(theirs, task)) for task in self.tasks}
            for task, (own, other) in best.items():
                found[f"{name}, {task}: best / {LLAMA}'s best"] = self.speed_up(own, task, other)
            found[f"{name}: best / {LLAMA}'s best, mean of the tasks"] = self._mean_ratio(best)
        return found

    def _fastest(self, ways: Sequence[str], task: str) -> str:
        """Returns the way with the highest median rate of a task."""
        return max(ways, key=lambda way: median(self.rate(way, run, task) for run in self.runs))

    def rows(self, target: str, temperature: float) -> list[dict[str, object]]:
        """Returns a row of the table for each way."""
        return [
            {
                "target": target,
                "T": temperature,
                "way": way,
                **{task: round(self.speed_up(way, task).median, 2) for task in self.tasks},
                "mean": self.mean_speed_up(way),
                "acceptance_length": round(self.acceptance_length(way), 2) if self._speculates(way) else None,
                "first_token_ms": round(self.first_token_ms(way).median),
            }
            for way in self.ways
        ]

    def _speculates(self, way: str) -> bool:
        """Whether a way of decoding reports its drafts."""
        return any(each.stats.draft_tokens for key, found in self.requests.items() if key[0] == way for each in found)


def _rate(requests: Sequence[Request]) -> float:
    tokens = seconds = 0.0
    for request in requests:
        first, last = request.arrivals[0], request.arrivals[-1]
        tokens += sum(arrival.tokens for arrival in request.arrivals) - first.tokens
        seconds += last.at - first.at
    return tokens / seconds
