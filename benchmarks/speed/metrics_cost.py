"""Measures what counting for metrics adds to a step, and what a scrape costs.

    python -m benchmarks.speed.metrics_cost [--rounds 1000] [--json]

The verifier's own counters record a step of 1, 16 and 64 requests, each of which verifies two draft tokens and gets two
tokens. The time is CPU time of one thread; in the verifier that is the event loop's thread, not the engine's.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace

from prometheus_client import generate_latest

from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.acceptance.acceptance import COUPLED
from draftwire_core.engine.engine.step_result import SequenceOutcome, StepResult
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.runtime.observability.metric_families import counter, gauge, histogram
from draftwire_tools.spread import Spread
from verifier_service.counting.acceptance_counts import AcceptanceCounts
from verifier_service.counting.request_counts import RequestCounts
from verifier_service.counting.step_counts import StepCounts

_BATCHES = (1, 16, 64)
_COST = StepCost([1, 8, 64, 256], [0.002, 0.003, 0.008, 0.03])


def counting(batch: int, rounds: int) -> list[float]:
    """Returns the microseconds to count one step, round by round."""
    outcomes = [SequenceOutcome(each, [1, 2], ["one#1", None], 10, {"one#1": 2}) for each in range(batch)]
    result = StepResult(outcomes, 3 * batch, 0.01)
    requests = [SimpleNamespace(times=SimpleNamespace(last_tokens=1.0)) for _ in range(batch)]
    steps, counts, acceptance = StepCounts(), RequestCounts(), AcceptanceCounts().begin(COUPLED)
    found = []
    for _ in range(rounds):
        started = time.thread_time_ns()
        now = time.perf_counter()
        steps.count(result, _COST, planned=True, waited=0.0)
        for outcome, request in zip(outcomes, requests, strict=True):
            acceptance.count(outcome, 2)
            counts.took(request, 2, now)  # type: ignore[arg-type]
        found.append((time.thread_time_ns() - started) / 1e3)
    return found


class _Drafters:
    """As many metric series as the given number of drafters produces."""

    def __init__(self, drafters: int) -> None:
        self._names = [f"drafter-{each}.example:50052" for each in range(drafters)]
        self._steps = StepCounts()

    def collect(self) -> list[object]:
        values = dict.fromkeys(self._names, 1.5)
        classes = {
            (name, str(rank), str(above)): 0.5 for name in self._names for rank in range(3) for above in range(6)
        }
        return [
            *(counter(f"counter_{each}", "Something.", values, ["drafter"]) for each in range(6)),
            *(gauge(f"gauge_{each}", "Something.", values, ["drafter"]) for each in range(7)),
            gauge("classes", "Something.", classes, ["drafter", "rank", "above"]),
            *(histogram(f"histogram_{each}", "Something.", self._steps.seconds) for each in range(9)),
        ]


def scraping(drafters: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns the milliseconds to collect a scrape's families (on the event loop) and to format its text (in a
    thread)."""
    source = _Drafters(drafters)
    made, written = [], []
    for _ in range(rounds):
        started = time.thread_time_ns()
        families = source.collect()
        between = time.thread_time_ns()
        generate_latest(SimpleNamespace(collect=lambda families=families: families))  # type: ignore[arg-type]
        made.append((between - started) / 1e6)
        written.append((time.thread_time_ns() - between) / 1e6)
    return made, written


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    add_report_options(parser)
    options = parser.parse_args()
    figures: dict[str, object] = {
        f"step of {batch}, us": Spread.of(counting(batch, options.rounds)) for batch in _BATCHES
    }
    for drafters in (1, 64):
        made, written = scraping(drafters, max(1, options.rounds // 20))
        figures[f"scrape with {drafters} drafters: families, ms"] = Spread.of(made)
        figures[f"scrape with {drafters} drafters: text, ms"] = Spread.of(written)
    print_report("metrics_cost", figures, options)


if __name__ == "__main__":
    main()
