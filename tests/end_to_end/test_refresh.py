"""An untrained drafter learns from the traffic, and takes over while requests run."""

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from draftwire import Client, Generation, Speculation
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash.training import DflashTrainer, DflashTraining
from draftwire_core.training.eagle.training import EagleTrainer, EagleTraining
from tests.harness import processes
from tests.harness.checkout import MODELS
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, sometimes

pytestmark = pytest.mark.slow

PROMPTS = ["def fib(n):", "import os\n", "class Node:\n"]


def generate(client: Client, number: int) -> Generation:
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
    return client.generate(PROMPTS[number % len(PROMPTS)], **options)


@contextmanager
def traffic(address: str, generate: Callable[[Client, int], Generation] = generate) -> Iterator[list[Generation]]:
    """Sends requests one after another until the block ends; yields the results. generate: sends one by its number."""
    ending = threading.Event()
    results: list[Generation] = []

    def send() -> None:
        with Client(address, timeout=PATIENCE) as client:
            while not ending.is_set():
                results.append(generate(client, len(results)))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield results
    finally:
        ending.set()
        sender.join()


def refreshed(verifier: ServiceProcess, canary: ServiceProcess, draft: Path, place: Path, *training: str) -> Path:
    """Refreshes the drafter "old" by a canary until drafts on trial come in time to be accepted; returns the output
    directory."""
    outs = itertools.count()

    def promoted() -> Path | None:
        out = place / str(next(outs))
        done = processes.run(
            [
                sys.executable, "-m", "draftwire.cli", "train", "refresh", "--verifier", verifier.address,
                "--drafter", "old", "--draft", str(draft), "--canary", canary.address, "--out", str(out),
                "--rounds", "1", "--requests", "12", "--batch-size", "4", "--trial-requests", "2", "--nice", "0",
                *training,
            ],
            env=os.environ | processes.ENVIRONMENT, capture_output=True, text=True, timeout=LONG_PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "v00001: promoted" in done.stdout or "v00001: withdrawn" in done.stdout
        return out if "promoted" in done.stdout else None

    return sometimes(promoted, "it is accepted better")


def test_a_refreshed_draft_takes_over(services: Services, tmp_path: Path) -> None:
    verifier = services.verifier("target", "--allow-scoring", "--share-traffic")
    old, canary = services.drafter("draft-untrained"), services.drafter("draft-untrained")
    with Client(verifier.address, timeout=PATIENCE) as client:
        plain = [generate(client, number).token_ids for number in range(len(PROMPTS))]
        client.drafters.attach(old.address, "old")
        with traffic(verifier.address) as results:
            training = ("--steps", "25", "--learning-rate", "3e-3")
            out = refreshed(verifier, canary, MODELS / "draft-untrained", tmp_path, *training)
        assert [drafter.name for drafter in client.drafters.list()] == [canary.address]
        assert [generate(client, number).token_ids for number in range(len(PROMPTS))] == plain
    assert all(result.token_ids == plain[index % len(PROMPTS)] for index, result in enumerate(results))
    assert results[0].speculation.accepted_tokens == 0
    standing = json.loads((out / "standing.json").read_text())
    assert (standing["version"], standing["drafter"], standing["canary"]) == (1, canary.address, old.address)


def generate_tokens(client: Client, number: int) -> Generation:
    prompt = [5 + (7 * (number % 3) + 3 * step) % 90 for step in range(9)]
    forced = Speculation(planning="always")
    return client.generate(prompt, max_tokens=40, temperature=0.0, ignore_eos=True, speculation=forced)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_refreshed_head_takes_over(kind: str, services: Services, tmp_path: Path) -> None:
    """The training computes the target's hidden states itself, and asks the verifier for no scores."""
    target, head = write_checkpoint(tmp_path / "target"), tmp_path / "head"
    base, windows = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32), Windows([list(range(3, 35))], 32, 8)
    if kind == "eagle3":
        EagleTrainer(base, windows, head, EagleTraining(), torch.float32).save()
    else:
        DflashTrainer(base, windows, head, DflashTraining(block=5, mask_token=2), torch.float32).save()
    flags = ["--target", str(target), "--dtype", "float32"]
    verifier = services.verifier(str(target), "--dtype", "float32", "--share-traffic")
    old, canary = services.drafter(str(head), *flags), services.drafter(str(head), *flags)
    with Client(verifier.address, timeout=PATIENCE) as client:
        plain = [generate_tokens(client, number).token_ids for number in range(3)]
        client.drafters.attach(old.address, "old")
        with traffic(verifier.address, generate_tokens) as results:
            out = refreshed(verifier, canary, head, tmp_path, "--steps", "60", "--learning-rate", "1e-2")
        (drafter,) = client.drafters.list()
        assert drafter.name == canary.address
        assert [generate_tokens(client, number).token_ids for number in range(3)] == plain
    assert all(result.token_ids == plain[index % 3] for index, result in enumerate(results))
    assert json.loads((out / "standing.json").read_text())["drafter"] == canary.address
