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
            [sys.executable, "-m", "draftwire.cli", "demo", "--bundled", "--json"],
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
        [request] = report["requests"]
        assert request["tokens"] == 200
        assert request["seconds"] > 0
        assert request["plain_seconds"] > 0
        both = {share["name"] for share in request["drafters"]} == {"draft-early", "draft"}
        return report if both and request["accepted_tokens"] else None

    report = sometimes(told, "both draft, and one is swapped for the other")
    assert report["swaps"] >= 1
    assert report["kills"] >= 1
    [request] = report["requests"]
    assert request["steps"] < request["tokens"]
    assert 0 < request["acceptance_rate"] <= 1
    assert request["acceptance_length"] > 1
