"""A small part of benchmarks/fuzz_forms.py: no form of output ends a verifier or holds up somebody else."""

import asyncio

from benchmarks.fuzz_form_texts import extremes
from benchmarks.fuzz_forms import attack
from benchmarks.services import Services

SECONDS = 60.0
SEED = 5


def test_no_form_harms_anybody() -> None:
    print(f"seed {SEED}")
    with Services() as services:
        findings = asyncio.run(attack(services, SEED, SECONDS))
    assert not findings.faults
    assert findings.codes.total() >= sum(1 for _ in extremes())
    for kind in ("json_schema", "regex", "lark", "ebnf"):
        assert findings.codes[f"{kind} INVALID_ARGUMENT"]
    assert findings.codes["json_schema OK"]
    assert findings.bystander_requests
