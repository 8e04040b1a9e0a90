"""A small part of benchmarks/faults/fuzz.py: services survive nonsense, and other clients are unaffected."""

import asyncio

import pytest

from benchmarks.faults.fuzz import attack
from benchmarks.harness.services import Services
from tests.harness.checkout import MODELS
from tests.harness.processes import Popen

pytestmark = pytest.mark.slow

MESSAGES = 4000
SEED = 3


def test_nonsense_harms_nobody() -> None:
    print(f"seed {SEED}")
    with Services(popen=Popen) as services:
        findings = asyncio.run(attack(SEED, MESSAGES, services, (MODELS / "target", MODELS / "draft")))
    assert not findings.faults
    assert findings.sent.total() >= MESSAGES
    for who in ("verifier", "drafter", "client", "unary"):
        assert findings.sent[f"{who}: fields"], f"nothing was said as {who}"
    assert findings.good_requests
