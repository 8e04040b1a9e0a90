"""An untrained draft model learns from the traffic, and takes over while requests run."""

import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwire import Client, Generation
from tests.harness import processes
from tests.harness.checkout import MODELS
from tests.harness.services import StartService
from tests.harness.waiting import PATIENCE, sometimes

PROMPTS = ["def fib(n):", "import os\n", "class Node:\n"]


def generate(client: Client, number: int) -> Generation:
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
    return client.generate(PROMPTS[number % len(PROMPTS)], **options)


@contextmanager
def traffic(address: str) -> Iterator[list[Generation]]:
    """Sends the prompts one after another until the block ends; yields the results."""
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


def test_a_refreshed_draft_takes_over(
    start_verifier: StartService, start_drafter: StartService, tmp_path: Path
) -> None:
    verifier = start_verifier("target", "--allow-scoring", "--share-traffic")
    old, canary = start_drafter("draft-untrained"), start_drafter("draft-untrained")
    with Client(verifier.address, timeout=PATIENCE) as client:
        plain = [generate(client, number).token_ids for number in range(len(PROMPTS))]
        client.drafters.attach(old.address, "old")
        outs = itertools.count()

        def promoted() -> Path | None:
            """Returns the output directory, unless the drafts on trial came too late to be accepted."""
            out = tmp_path / str(next(outs))
            done = processes.run(
                [
                    sys.executable, "-m", "draftwire.cli", "train", "refresh", "--verifier", verifier.address,
                    "--drafter", "old", "--draft", str(MODELS / "draft-untrained"), "--canary", canary.address,
                    "--out", str(out), "--rounds", "1", "--requests", "12", "--steps", "25", "--batch-size", "4",
                    "--learning-rate", "3e-3", "--trial-requests", "2", "--nice", "0",
                ],
                env=os.environ | processes.ENVIRONMENT, capture_output=True, text=True, timeout=2 * PATIENCE,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "v00001: promoted" in done.stdout or "v00001: withdrawn" in done.stdout
            return out if "promoted" in done.stdout else None

        with traffic(verifier.address) as results:
            out = sometimes(promoted, "it is accepted better")
        assert [drafter.name for drafter in client.drafters.list()] == [canary.address]
        assert [generate(client, number).token_ids for number in range(len(PROMPTS))] == plain
    assert all(result.token_ids == plain[index % len(PROMPTS)] for index, result in enumerate(results))
    assert results[0].speculation.accepted_tokens == 0
    standing = json.loads((out / "standing.json").read_text())
    assert (standing["version"], standing["drafter"], standing["canary"]) == (1, canary.address, old.address)
