"""Asks a GPU the questions at the head of the queue: those without an answer yet, in order, while time is left.

    python -m benchmarks.gpu.questions [--minutes 14] [--results DIR] [NAME ...]
    python -m benchmarks.gpu.questions --device cpu            rehearses all, in tiny settings

Each question is a script of its own in this folder, with the expected answer and what follows from it in its docstring,
and takes at most four minutes. Answers are lines of JSON; those of a GPU are kept below --results, and are to be
committed in benchmarks/results, which takes them out of the queue. Names of questions ask these, answered or not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.results import RESULTS, results
from tests.harness.checkout import ROOT

FOLDER = Path(__file__).parent
LONGEST = 240.0
"""Seconds of a question."""
_LEAST = 60.0
"""Seconds that must be left for a question to be asked."""


def questions() -> list[str]:
    """Names of all questions, in order."""
    return sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))


def unanswered(directory: Path = RESULTS) -> list[str]:
    """Names of the questions that no GPU has answered below a directory of results."""
    answered = {each.benchmark for each in results(directory) if "gpu" in each.machine}
    return [name for name in questions() if name not in answered]


def ask(name: str, device: str, place: Path | None, seconds: float) -> bool:
    """Asks a question in a process of its own, which prints the answer; returns whether there is one."""
    command = [sys.executable, "-m", f"benchmarks.gpu.questions.{name}", "--device", device]
    command += [] if place is None else ["--results", str(place)]
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=seconds, check=False)
        failure = f"status {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        failure = f"more than {seconds:.0f} s"
    if failure:
        print(json.dumps({"question": name, "failed": failure}), flush=True)
    return not failure


def main(argv: Sequence[str] | None = None) -> None:
    """Asks the questions of the command line, or the head of the queue. Exits with status 1 if one has no answer."""
    options = read_options(argv)
    ends = time.monotonic() + 60 * options.minutes
    queue = options.names or (unanswered() if options.device != "cpu" else questions())
    failed = False
    while queue:
        left = ends - time.monotonic()
        if left < _LEAST:
            break
        failed = not ask(queue.pop(0), options.device, options.results, min(LONGEST, left)) or failed
    if queue:
        print(f"left for the next time: {', '.join(queue)}", file=sys.stderr)
    sys.exit(int(failed))


def read_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.questions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", choices=[[], *questions()], metavar="NAME", help="questions to ask")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to rehearse")
    parser.add_argument("--minutes", type=float, default=14.0, help="time for all questions")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where answers are kept as results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
