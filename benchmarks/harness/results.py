"""Results of benchmarks as data: one JSON file per run, with everything it was measured on."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import commit_time, cpu_features, gpu_name, machine
from tests.harness.checkout import ROOT

RESULTS = ROOT / "benchmarks" / "results"
"""Directory of the results that the documents are made from."""
_VERSIONS = ("python", "torch", "transformers", "grpcio")


@dataclass(frozen=True)
class Result:
    """One run of a benchmark. A field is None where it is unknown."""

    benchmark: str
    """The script's name, such as `never_slower`."""
    command: str | None
    """The command line, from `python` on; None for figures combined from several runs."""
    commit: str
    """The abbreviated commit that was measured, with `-dirty` if files had changed."""
    committed: str | None
    """The time of that commit, in ISO 8601. Results are ordered by it."""
    date: str | None
    """The time of the measurement, in ISO 8601."""
    machine: Mapping[str, Any]
    """processor (text), cores (count), features (instruction sets) and load (averages before the run); gpu (text), if
    one was measured."""
    versions: Mapping[str, str]
    """Versions of Python and of the packages that matter, by name."""
    note: str | None
    """Conditions that the other fields do not cover, such as other work on the machine."""
    figures: Mapping[str, Any]
    """The figures by name. A spread is {"median", "low", "high", "runs"}, each None if unknown."""

    @property
    def processor(self) -> str:
        """The processor's name."""
        return str(self.machine["processor"])


def results(directory: Path = RESULTS) -> list[Result]:
    """Returns all results below a directory, newest commit first; of one commit, the one measured last."""
    found = [Result(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(directory.glob("*/*.json"))]
    return sorted(found, key=lambda each: (_time(each.committed), each.date or ""), reverse=True)


def shown_name(script: str) -> str:
    """Returns the name of a script's results: its module's, without the room and `.__main__`."""
    return script.removesuffix(".__main__").rpartition(".")[2]


def write(result: Result, directory: Path) -> Path:
    """Writes a result to `<directory>/<benchmark>/<GPU or processor>-<commit>.json`; returns its path.

    A further run of the same benchmark, machine and commit gets a number after its commit.
    """
    place = directory / result.benchmark
    place.mkdir(parents=True, exist_ok=True)
    name = str(result.machine.get("gpu", result.processor))
    stem = f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}-{result.commit}"
    number, path = 1, place / f"{stem}.json"
    while path.exists():
        number += 1
        path = place / f"{stem}-{number}.json"
    path.write_text(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def add_results_option(parser: argparse.ArgumentParser) -> None:
    """Adds --results."""
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="also write the figures as data below this directory; the documents show those in benchmarks/results",
    )


def save(figures: Mapping[str, object], options: argparse.Namespace) -> None:
    """Writes the figures of the running script below the directory of --results, if given, and prints the path."""
    if options.results is None:
        return
    about = machine()
    module = _running()
    gpu = gpu_name(getattr(options, "device", "cpu"))
    result = Result(
        benchmark=shown_name(module),
        command=shlex.join(["python", "-m", module, *sys.argv[1:]]),
        commit=about["commit"],
        committed=commit_time(),
        date=_now(),
        machine={
            "processor": about["processor"],
            "cores": int(about["cores"]),
            "features": cpu_features(),
            "load": about["load"],
            **({} if gpu is None else {"gpu": gpu}),
        },
        versions={name: about[name] for name in _VERSIONS},
        note=None,
        figures={name: plain(value) for name, value in figures.items()},
    )
    print(f"figures: {write(result, options.results)}", file=sys.stderr)


def plain(value: object) -> object:
    """Converts a figure to JSON types: dataclasses become objects, sequences lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    return value


def _running() -> str:
    """Returns the module that `python -m` runs, without `.__main__`."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).stem


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _time(text: str | None) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text or "1970-01-01T00:00:00+00:00")
