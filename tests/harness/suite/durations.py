"""Processor seconds that each test file took when they were last recorded, `tests/durations.json`.

They decide the order of a run, longest first, and what is in the quick tier. `make durations` records them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parents[2] / "durations.json"


class Durations:
    """Processor seconds by file; a file that is not recorded counts as taking none."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        """seconds: by path from the root of the checkout."""
        self.by_file = dict(seconds)

    @classmethod
    def recorded(cls) -> Durations:
        """Reads those that were recorded."""
        return cls(json.loads(FILE.read_text()) if FILE.exists() else {})

    def seconds(self, file: str) -> float:
        """The processor seconds of a file."""
        return self.by_file.get(file, 0.0)

    def record(self, seconds: Mapping[str, float]) -> None:
        """Writes the file again, with these seconds for the files that have run."""
        found = {name: each for name, each in {**self.by_file, **seconds}.items() if (FILE.parents[1] / name).exists()}
        rounded = {name: round(each, 1) for name, each in sorted(found.items()) if round(each, 1) > 0}
        FILE.write_text(json.dumps(rounded, indent=0) + "\n")
