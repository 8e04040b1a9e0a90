"""`draftwire demo` with the bundled models: its claims are true."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import processes
from tests.harness.waiting import LONG_PATIENCE, sometimes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo() -> None:
    def told() -> dict[str, Any] | None:
        """Returns the demo's report, unless its request ended before both drafters had drafted and been swapped."""
        done = processes.run(
            [sys.executable, "-m", "draftwire.cli", "demo", "--json"],
            cwd=ROOT,
            env=os.environ | processes.ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            spares=4,
        )
        if done.returncode == 1 and "the request ended before" in done.stderr:
            return None
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["identical"] is True
        assert report["tokens"] == 200
        assert report["seconds"] > 0
        assert report["plain_seconds"] > 0
        both = {share["name"] for share in report["drafters"]} == {"draft-early", "draft"}
        return report if both and report["accepted_tokens"] else None

    report = sometimes(told, "both draft, and one is swapped for the other")
    assert report["swaps"] >= 1
    assert report["kills"] >= 1
    assert report["steps"] < report["tokens"]
    assert 0 < report["acceptance_rate"] <= 1
    assert report["acceptance_length"] > 1
