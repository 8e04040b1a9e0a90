"""Output forms end no verifier and delay no caller: a small part of benchmarks/faults/fuzz_forms.py."""

import asyncio
from typing import Any

import httpx
import pytest

from benchmarks.faults.fuzz_form_texts import extremes
from benchmarks.faults.fuzz_forms import attack
from benchmarks.harness.services import Services
from draftwire import Client
from draftwire.errors import InvalidFieldError
from tests.harness.hostile_forms import gbnf_rules, lark_rules, references
from tests.harness.processes import Popen
from tests.harness.waiting import LONG_PATIENCE, PATIENCE

pytestmark = pytest.mark.processes

SECONDS = 5.0
SEED = 5
CHAINS: dict[str, tuple[str, str, str]] = {
    "references": ("json_schema", "json", references(3000)),
    "Lark rules": ("grammar", "grammar", lark_rules(3000)),
    "GBNF rules": ("ebnf", "grammar", gbnf_rules(6000)),
}
"""Forms that overflow the grammar library's stack: by name the SDK's kind, the gateway's kind, and the text."""


def test_a_form_does_not_end_a_verifier(services: Services) -> None:
    with Client(services.verifier().address, timeout=PATIENCE) as client:
        for option, _, text in CHAINS.values():
            options: dict[str, Any] = {option: text}
            with pytest.raises(InvalidFieldError, match="levels deep"):
                client.generate("def f(", max_tokens=4, **options)
        assert client.generate("def f(", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4


@pytest.mark.slow
class TestManyForms:
    def test_no_form_harms_anybody(self) -> None:
        print(f"seed {SEED}")
        with Services(popen=Popen) as services:
            findings = asyncio.run(attack(services, SEED, SECONDS))
        assert not findings.faults
        assert findings.codes.total() >= sum(1 for _ in extremes())
        for kind in ("json_schema", "regex", "lark", "ebnf"):
            assert findings.codes[f"{kind} INVALID_ARGUMENT"]
        assert findings.codes["json_schema OK"]
        assert findings.bystander_requests

    def test_a_form_ends_neither_of_two_verifiers(self, services: Services) -> None:
        addresses = [each.address for each in (services.verifier(), services.verifier())]
        gateway = services.gateway("--verifier", ",".join(addresses))
        try:
            with Client(addresses, timeout=LONG_PATIENCE) as client:
                for option, guided, text in CHAINS.values():
                    options: dict[str, Any] = {option: text}
                    with pytest.raises(InvalidFieldError, match="levels deep"):
                        client.generate("def f(", max_tokens=4, **options)
                    asked = {"prompt": "def f(", "max_tokens": 4, f"guided_{guided}": text}
                    answer = httpx.post(f"{gateway.url}/v1/completions", json=asked, timeout=LONG_PATIENCE)
                    assert (answer.status_code, "levels deep" in answer.text) == (400, True), answer.text
        finally:
            gateway.stop()
        for address in addresses:
            with Client(address, timeout=LONG_PATIENCE) as client:
                assert client.generate("def f(", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4
