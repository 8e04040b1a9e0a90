"""Processor seconds that the tests of each file took when they were last recorded, `tests/durations.json`.

They decide the order of a run, longest first, what is in the quick tier, and how many slow files CI runs. `make
durations` records them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parents[2] / "durations.json"


class Durations:
    """Processor seconds by file, from the root of the checkout: of its tests in the default tier, and of its slow ones.

    A file that is not recorded counts as taking none.
    """

    def __init__(self, default: Mapping[str, float], slow: Mapping[str, float]) -> None:
        self.default = dict(default)
        self.slow = dict(slow)

    @classmethod
    def recorded(cls) -> Durations:
        """Reads those that were recorded."""
        return cls(**json.loads(FILE.read_text())) if FILE.exists() else cls({}, {})

    def seconds(self, file: str, tier: str) -> float:
        """The processor seconds of a file in a tier."""
        default = 0.0 if tier == "slow" else self.default.get(file, 0.0)
        return default + (self.slow.get(file, 0.0) if tier in ("slow", "all") else 0.0)

    def record(self, default: Mapping[str, float], slow: Mapping[str, float]) -> None:
        """Writes the file again, with these seconds for the files that have run."""
        merged = {"default": _merged(self.default, default), "slow": _merged(self.slow, slow)}
        FILE.write_text(json.dumps(merged, indent=0) + "\n")


def _merged(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    found = {file: each for file, each in {**before, **now}.items() if (FILE.parents[1] / file).exists()}
    return {file: round(each, 1) for file, each in sorted(found.items()) if round(each, 1) > 0}
