"""What every benchmark prints beside its figures: machine, versions, commit; and medians with spread."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn


def machine() -> dict[str, str]:
    """Processor, cores, versions and commit."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "processor": processor,
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "grpcio": version("grpcio"),
        "commit": described.stdout.strip() or "unknown",
    }


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median, minimum and maximum. Raises statistics.StatisticsError if there is none."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g}, {self.runs} runs)"


def print_report(title: str, figures: dict[str, object], as_json: bool) -> None:
    """Print the figures with what they were measured on."""
    about = machine()
    if as_json:
        plain = {name: asdict(value) if isinstance(value, Spread) else value for name, value in figures.items()}
        json.dump({"benchmark": title, "machine": about, **plain}, sys.stdout, indent=2)
        print()
        return
    print(title)
    print("  " + ", ".join(f"{name} {value}" for name, value in about.items()))
    for name, value in figures.items():
        print(f"  {name}: {value}")


def end_with_faults(name: str, figures: dict[str, object], faults: Sequence[str], as_json: bool) -> NoReturn:
    """Print a fuzzer's figures and its first faults. Raises SystemExit: status 1 if there is a fault, else 0."""
    print_report(name, figures, as_json)
    for fault in faults[:20]:
        print(fault[:2000], file=sys.stderr)
    sys.exit(1 if faults else 0)
