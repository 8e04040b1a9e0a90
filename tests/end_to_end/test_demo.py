"""`draftwire demo` with the bundled models: what it claims has happened."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 230


def test_the_demo() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "draftwire.cli", "demo", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["identical"] is True
    assert report["swaps"] >= 1
    assert report["kills"] >= 1
    assert report["tokens"] == 200
    assert report["steps"] < report["tokens"]
    assert 0 < report["acceptance_rate"] <= 1
    assert report["acceptance_length"] > 1
    assert report["seconds"] > 0
    assert report["plain_seconds"] > 0
    assert {share["name"] for share in report["drafters"]} == {"draft-early", "draft"}
