"""`draftwire check-drafter` against the drafter service with bundled models."""

import json
import sys

from tests.harness import processes
from tests.harness.checkout import MODELS
from tests.harness.services import StartService
from tests.harness.waiting import PATIENCE


def check(address: str) -> dict[str, str]:
    """Returns the outcome of each rule."""
    done = processes.run(
        [sys.executable, "-m", "draftwire.cli", "check-drafter", address, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["rule"]: each["outcome"] for each in json.loads(done.stdout)["rules"]}


def test_the_drafter_service_keeps_every_rule(good_drafter: str) -> None:
    assert set(check(good_drafter).values()) == {"passed"}


def test_a_drafter_that_translates(start_drafter: StartService) -> None:
    drafter = start_drafter("draft-other", "--target-tokenizer", str(MODELS / "target"))
    found = check(drafter.address)
    assert {rule for rule, outcome in found.items() if outcome != "passed"} == {"draws.reported"}
    assert found["draws.reported"] == "skipped"
