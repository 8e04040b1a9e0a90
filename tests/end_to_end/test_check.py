"""`draftwire check` against real services: it certifies what is right, and finds each planted fault."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwire import Client
from tests.harness import processes
from tests.harness.checkout import MODELS, ROOT
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, PATIENCE

pytestmark = pytest.mark.slow

Check = Callable[..., tuple[int, dict[str, Any]]]
FAULTY = "tests.harness.faulty_verifier"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Runs the command; returns its exit status and the certificate."""
    found = tmp_path / "found.json"

    def run(*arguments: str, spares: int = 0) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "draftwire.cli", "check", *arguments, "--json", str(found)]
        done = processes.run(command, capture_output=True, text=True, timeout=LONG_PATIENCE, cwd=ROOT, spares=spares)
        assert found.exists(), done.stderr
        assert ("Traceback" in done.stderr) is False, done.stderr
        return done.returncode, json.loads(found.read_text())

    return run


def cases(certificate: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["case"]: each for each in certificate["cases"]}


def test_a_faultless_verifier(
    check: Check, verifier: ServiceProcess, good_drafter: str, client: Client, tmp_path: Path
) -> None:
    client.drafters.attach(good_drafter, "good")
    client.drafters.attach("local:ngram", "local:ngram")
    shown = tmp_path / "shown.html"
    status, found = check(
        "--verifier", verifier.address, "--requests", "1", "--max-tokens", "24", "--seeds", "24", "--html", str(shown)
    )
    assert (status, found["passed"], found["differences"]) == (0, True, [])
    ran = cases(found)
    assert all(each["equal"] == each["compared"] == 5 and not each["not_run"] for each in ran.values()), ran
    assert ran["good always drafts"]["draft_tokens"] > 0
    assert ran["local:ngram always drafts"]["draft_tokens"] > 0
    assert ran["16 requests at once"]["draft_tokens"] > 0
    assert "swaps" in ran["drafters swapped after every 5 tokens"]["events"]
    assert [test["passed"] for test in found["distributions"]] == [True] * 6  # local drafters are trusted
    assert found["about"]["numerics"] and found["commands"][0].startswith("draftwire check --verifier")
    assert {each["drafters"] for each in found["speed"]["figures"]} == {"plain", "good", "local:ngram", "all"}
    assert found["speed"]["step_costs"]
    page = shown.read_text()
    assert page.index("Equal: all") < page.index("<table")
    assert not re.search(r"(src|href)=|@import|url\(", page), "the page needs nothing else"
    assert [drafter.name for drafter in client.drafters.list()] == ["good", "local:ngram"]


@pytest.mark.parametrize(
    ("fault", "case", "what"),
    [
        ("wrong_bit", "good always drafts", "log-probabilities"),
        ("rejected_key", "good always drafts", "token ids"),
        ("drafted_bonus", "good always drafts", "token ids"),
        ("ignored_seed", "plain decoding again", "token ids"),
    ],
)
def test_planted_faults(check: Check, services: Services, good_drafter: str, fault: str, case: str, what: str) -> None:
    faulty = services.verifier("target", "--fault", fault, program=FAULTY)
    try:
        with Client(faulty.address, timeout=PATIENCE) as client:
            client.drafters.attach(good_drafter, "good")
        status, found = check("--verifier", faulty.address, "--requests", "3", "--seeds", "0", "--minutes", "1")
    finally:
        faulty.kill()
    assert (status, found["passed"]) == (1, False)
    assert what in {each["what"] for each in found["differences"] if each["case"] == case}
    first = found["differences"][0]
    assert first["plain"] != first["other"]
    assert first["request"]["options"]["seed"] >= 1
    if fault != "ignored_seed":
        assert cases(found)["plain decoding again"]["equal"] == cases(found)["plain decoding again"]["compared"]


@pytest.mark.parametrize("fault", ["one_seed", "cooler"])
def test_planted_faults_of_the_distribution(check: Check, services: Services, fault: str) -> None:
    """All outputs of a request are equal here: only the tests of distributions notice."""
    faulty = services.verifier("target", "--fault", fault, program=FAULTY)
    try:
        status, found = check(
            "--verifier", faulty.address, "--drafter", "local:ngram", "--requests", "1", "--max-tokens", "8",
            "--seeds", "400",
        )  # fmt: skip
    finally:
        faulty.kill()
    assert (status, found["passed"], found["differences"]) == (1, False, [])
    assert not any(test["passed"] for test in found["distributions"])


def test_further_verifiers(check: Check) -> None:
    status, found = check(
        "--target", str(MODELS / "target"), "--draft", str(MODELS / "draft"), "--requests", "4", "--seeds", "16",
        "--max-tokens", "48", "--minutes", "3", spares=8,
    )  # fmt: skip
    assert (status, found["passed"]) == (0, True)
    ran = cases(found)
    assert ran["another verifier process, no drafter"]["compared"] > 0
    assert ran["another verifier with 2 threads, all drafters"]["draft_tokens"] > 0
    preempted = next(each for name, each in ran.items() if name.startswith("preemption"))
    assert preempted["compared"] > 0 and not preempted["events"].startswith("0 ")
    kernels = [each for name, each in ran.items() if name.startswith("kernels")]
    assert kernels and all(each["compared"] or each["not_run"] for each in kernels)
    assert any("rule of rejection" in test["name"] for test in found["distributions"])


def test_an_endpoint_from_outside(check: Check, services: Services) -> None:

    service = services.verifier("target")
    with Client(service.address, timeout=PATIENCE) as client:
        client.drafters.attach("local:ngram")
    gateway = services.gateway("--verifier", service.address)
    try:
        status, found = check(
            "--openai", gateway.url, "--plain-field", '{"speculation": {"enabled": false}}', "--requests", "2",
            "--max-tokens", "24",
        )  # fmt: skip
        assert (status, found["passed"]) == (0, True)
        ran = cases(found)
        assert ran["speculation"]["compared"] == 4
        assert set(ran) == {
            "plain decoding again", "plain decoding, 8 requests at once",
            "speculation", "speculation, 8 requests at once",
        }  # fmt: skip
        assert any("from outside" in note for note in found["notes"])
        status, found = check("--openai", f"{gateway.url}/v1", "--requests", "1", "--max-tokens", "8")
        assert status == 0
        assert any("no plain decoding" in note for note in found["notes"])
    finally:
        gateway.kill()
