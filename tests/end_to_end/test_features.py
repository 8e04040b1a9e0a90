"""An EAGLE-3 drafter in a process of its own, which drafts from features that the verifier sends over the wire."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from draftwire import Client, Generation, Speculation
from draftwire_core.engine.engine.verification_engine import generate_all
from tests.harness.engine.engines import GREEDY, engine_of, packed, specs_of
from tests.harness.models.eagle_training import train_eagle
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services

pytestmark = pytest.mark.processes

PROMPTS = [[5 + (length * step) % 90 for step in range(length)] for length in (9, 40, 150)]
LENGTH = 60
PLAIN = Speculation(enabled=False)
FORCED = Speculation(planning="always")
FLOAT32 = ("--dtype", "float32")


@dataclass(frozen=True)
class Checkpoints:
    """A target, and an EAGLE-3 drafter trained on its output for the prompts."""

    target: Path
    eagle: Path


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    place = tmp_path_factory.mktemp("features")
    target = write_checkpoint(place / "target")
    specs = specs_of(PROMPTS, LENGTH, GREEDY)
    found = generate_all(engine_of(packed(_load(target), 1000)), specs)
    documents = [[*spec.tokens, *tokens] for spec, tokens in zip(specs, found, strict=True)]
    return Checkpoints(target, train_eagle(_load(target), documents, place / "eagle"))


def _load(directory: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)


@pytest.fixture(scope="module")
def verifier(checkpoints: Checkpoints, module_services: Services) -> ServiceProcess:
    return module_services.verifier(checkpoints.target, *FLOAT32).serving()


@pytest.fixture(scope="module")
def drafter(checkpoints: Checkpoints, module_services: Services) -> ServiceProcess:
    return module_services.drafter(checkpoints.eagle, *FLOAT32, "--target", str(checkpoints.target)).serving()


@pytest.fixture(scope="module")
def plain_drafter(checkpoints: Checkpoints, module_services: Services) -> ServiceProcess:
    """One that reads tokens alone: the target itself."""
    return module_services.drafter(checkpoints.target, *FLOAT32).serving()


def generate(client: Client, prompt: list[int], speculation: Speculation, **options: Any) -> Generation:
    options = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.0} | options
    return client.generate(prompt, speculation=speculation, **options)


def test_outputs_are_plain_ones_and_guesses_are_accepted(client: Client, drafter: ServiceProcess) -> None:
    for options in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 3}):
        plain = [generate(client, prompt, PLAIN, **options) for prompt in PROMPTS[1:]]
        client.drafters.attach(drafter.address, name="eagle")
        forced = [generate(client, prompt, FORCED, **options) for prompt in PROMPTS[1:]]
        assert [each.token_ids for each in forced] == [each.token_ids for each in plain]
        if not options["temperature"]:
            assert sum(each.speculation.accepted_tokens for each in forced) > 10
        client.drafters.detach("eagle")
    (model,) = (client.drafters.attach(drafter.address, name="eagle").model,)
    assert model is not None
    assert model.architecture == "Eagle3"


def test_swaps_with_other_kinds_while_requests_run(
    client: Client, drafter: ServiceProcess, plain_drafter: ServiceProcess, checkpoints: Checkpoints
) -> None:
    prompt, length = PROMPTS[1], 80
    plain = generate(client, prompt, PLAIN, max_tokens=length)
    places = [drafter.address, plain_drafter.address, "local:ngram?min=1", f"local:eagle3?model={checkpoints.eagle}"]
    client.drafters.attach(places[0])
    tokens: list[int] = []
    swaps = 0
    with client.stream(prompt, max_tokens=length, ignore_eos=True, temperature=0.0, speculation=FORCED) as stream:
        for chunk in stream:
            tokens += chunk.token_ids
            if len(tokens) > 10 * (swaps + 1) and swaps < 5:
                client.drafters.swap(places[swaps % 4], places[(swaps + 1) % 4])
                swaps += 1
    assert tokens == plain.token_ids
    assert swaps == 5
