"""A small part of benchmarks/faults/fuzz.py: services survive nonsense, and other clients are unaffected."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.fuzz import attack
from benchmarks.harness.services import Services
from tests.harness.checkout import MODELS
from tests.harness.processes import Popen
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import STEADY_VERIFIER

pytestmark = pytest.mark.processes

SEED = 3


class Started(Services):
    """Services that have been started before the attack. The verifier does not measure its steps."""

    def __init__(self) -> None:
        super().__init__(popen=Popen)
        self._verifier = super().verifier(MODELS / "target", module=STEADY_VERIFIER)
        self._drafter = super().drafter(MODELS / "draft")
        assert self._verifier.address and self._drafter.address

    def verifier(self, model: Path, *flags: str, **options: Any) -> ServiceProcess:
        return self._verifier

    def drafter(self, model: Path, *flags: str, **options: Any) -> ServiceProcess:
        return self._drafter


@pytest.fixture(scope="module")
def services() -> Iterator[Started]:
    with Started() as services:
        yield services


def check_nonsense_harms_nobody(services: Started, messages: int) -> None:
    print(f"seed {SEED}")
    findings = asyncio.run(attack(SEED, messages, services, (MODELS / "target", MODELS / "draft")))
    assert not findings.faults, "\n".join(findings.faults)
    assert findings.sent.total() >= messages
    for who in ("verifier", "drafter", "client", "unary"):
        assert findings.sent[f"{who}: fields"], f"nothing was said as {who}"
    assert findings.good_requests


def test_nonsense_harms_nobody(services: Started) -> None:
    check_nonsense_harms_nobody(services, 100)


@pytest.mark.slow
class TestMoreNonsense:
    def test_it_harms_nobody(self, services: Started) -> None:
        check_nonsense_harms_nobody(services, 4000)
