"""`draftwire bench` against real services."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftwire import Client
from tests.harness.services.service_process import ServiceProcess
from tests.harness.waiting import LONG_PATIENCE, sometimes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("good", "local:ngram", "local:ngram+good", "prediction")


def test_methods_are_compared(verifier: ServiceProcess, good_drafter: str, client: Client, tmp_path: Path) -> None:
    client.drafters.attach(good_drafter, "good")
    prompt = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"
    expected = client.generate(prompt, max_tokens=24, temperature=0, ignore_eos=True).text
    prompts = tmp_path / "edit.jsonl"
    prompts.write_text(json.dumps({"text": prompt, "prediction": expected}) + "\n")
    found = tmp_path / "found.json"
    named = [argument for name in METHODS for argument in ("--method", name)]

    def compared() -> dict[str, Any] | None:
        """Returns the report, if drafts came in time to be rejected."""
        done = subprocess.run(
            [
                sys.executable, "-m", "draftwire.cli", "bench", "--verifier", verifier.address, *named,
                "--prompts", str(prompts), "--max-tokens", "24", "--runs", "1", "--temperature", "0",
                "--temperature", "0.8",
                "--json", str(found),
            ],
            env=os.environ | {"PYTHONPATH": str(ROOT / "sdk")},
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(found.read_text())
        assert report["outputs_identical"] is True
        rejected = [each["rollback_share"] for each in report["figures"] if each["method"] == "good"]
        return report if any(rejected) else None

    report = sometimes(compared, "drafts are rejected")
    figures = {(each["method"], each["temperature"]): each for each in report["figures"]}
    assert set(figures) == {(name, temperature) for name in ("plain", *METHODS) for temperature in (0.0, 0.8)}
    assert figures["plain", 0.0]["acceptance_length"] == 1.0
    assert figures["plain", 0.0]["draft_share"] == 0.0
    assert figures["good", 0.0]["draft_share"] > 0
    assert figures["local:ngram", 0.0]["draft_share"] > 0
    predicted = figures["prediction", 0.0]
    assert predicted["acceptance_length"] > 3
    assert predicted["draft_tokens"] > 0
    methods = {each["name"]: each for each in report["methods"]}
    assert methods["good"]["memory"]["weights_bytes"] > 1_000_000
    assert methods["local:ngram"]["needs"] == [{"draft_model": False, "training": "no"}]
    assert [drafter.name for drafter in client.drafters.list()] == ["good"]
