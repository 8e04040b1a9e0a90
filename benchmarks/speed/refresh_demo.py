"""Follows a draft model through a change of domain: acceptance before it, after it, and after a refresh.

    python -m benchmarks.speed.refresh_demo [--requests 96] [--steps 150] [--json]

The services are a verifier with the bundled target, a drafter service with the bundled draft, and a second, idle one.
Traffic is first held-out Python, which the draft was trained for, then tables of comma-separated values, which it was
not. `draftwire train refresh` follows the traffic, trains, and rolls the new draft out while requests run. Nothing is
restarted. Acceptance is what clients see over --measured requests, the same ones before and after: accepted tokens /
draft tokens, and tokens per verification. The refresh does not learn from these requests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options
from benchmarks.harness.results import save
from benchmarks.harness.services import Services
from draftwire import Client
from tests.harness.checkout import MODELS, ROOT
from tests.harness.processes import SERVICE_ENVIRONMENT
from tests.harness.services.service_process import ServiceProcess

_MEASURED = 24
_MAX_TOKENS = 48
_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Served:
    """Speculation counts of some requests."""

    acceptance_rate: float
    tokens_per_step: float
    outputs: list[list[int]]

    def __str__(self) -> str:
        return f"{100 * self.acceptance_rate:.1f} % of draft tokens, {self.tokens_per_step:.2f} tokens a step"


def table(number: int) -> str:
    """Returns the beginning of a table, header and some rows; no two are alike."""
    chance = random.Random(number)
    names, cities = ("anna", "ben", "carl", "dora", "emil", "finn"), ("oslo", "rome", "lima", "cairo", "quito")
    rows = [
        f"{chance.randrange(10000)},{chance.choice(names)},{chance.choice(cities)},{1000 * chance.random():.2f},"
        f"2026-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}"
        for _ in range(8)
    ]
    return "\n".join(["id,name,city,amount,date", *rows]) + "\n"


def serve(client: Client, prompts: Sequence[str]) -> Served:
    """Sends requests two at a time and adds up their speculation statistics."""
    results = client.generate_batch(
        prompts,
        seed=list(range(len(prompts))),
        max_concurrency=2,
        max_tokens=_MAX_TOKENS,
        temperature=_TEMPERATURE,
        ignore_eos=True,
    )
    drafted = sum(each.speculation.draft_tokens for each in results)
    accepted = sum(each.speculation.accepted_tokens for each in results)
    steps = sum(each.speculation.steps for each in results)
    tokens = sum(len(each.token_ids) for each in results)
    return Served(accepted / max(1, drafted), tokens / steps, [each.token_ids for each in results])


@contextmanager
def traffic(address: str) -> Iterator[None]:
    """Sends requests for tables, two at a time, until the block ends."""
    ending = threading.Event()

    def send(first: int) -> None:
        with Client(address) as client:
            number = first
            while not ending.is_set():
                client.generate(
                    table(number), max_tokens=_MAX_TOKENS, temperature=_TEMPERATURE, seed=number, ignore_eos=True
                )
                number += 2

    threads = [threading.Thread(target=send, args=(1000 + index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def refresh(
    verifier: ServiceProcess, canary: ServiceProcess, out: Path, options: argparse.Namespace, output: int | None
) -> None:
    """Runs `draftwire train refresh` for one round."""
    subprocess.run(
        [
            sys.executable, "-m", "draftwire.cli", "train", "refresh", "--verifier", verifier.address,
            "--drafter", "draft-1", "--draft", str(MODELS / options.draft), "--canary", canary.address,
            "--out", str(out), "--rounds", "1", "--nice", "0", "--requests", str(options.requests),
            "--steps", str(options.steps), "--trial-requests", str(options.trial_requests),
            "--learning-rate", str(options.learning_rate),
        ],
        cwd=ROOT,
        env=os.environ | SERVICE_ENVIRONMENT,
        stdout=output,
        check=True,
    )  # fmt: skip


def main() -> None:
    """Runs the demonstration and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="draft", help="bundled draft model to begin with")
    parser.add_argument("--requests", type=int, default=96, help="requests that the refresh learns from")
    parser.add_argument("--steps", type=int, default=150, help="training steps")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--trial-requests", type=int, default=12, help="requests of each side that decide the trial")
    parser.add_argument("--measured", type=int, default=_MEASURED, help="requests that acceptance is measured on")
    add_report_options(parser)
    options = parser.parse_args()
    python = held_out_prompts(options.measured)
    tables = [table(number) for number in range(options.measured)]

    def tell(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    with Services() as services, tempfile.TemporaryDirectory() as out:
        verifier = services.verifier(MODELS / "target", "--allow-scoring", "--share-traffic")
        drafter, canary = services.drafter(MODELS / options.draft), services.drafter(MODELS / options.draft)
        with Client(verifier.address) as client:
            client.drafters.attach(drafter.address, "draft-1")
            at_home = serve(client, python)
            tell(f"Python: {at_home}")
            before = serve(client, tables)
            tell(f"tables, the same draft: {before}")
            started = time.perf_counter()
            with traffic(verifier.address):
                refresh(verifier, canary, Path(out), options, sys.stderr.fileno() if options.json else None)
            seconds = time.perf_counter() - started
            after = serve(client, tables)
            tell(f"tables, refreshed after {seconds:.0f} s: {after}")
            drafters = [each.name for each in client.drafters.list()]
    promoted = drafters != ["draft-1"]
    tell(f"promoted: {promoted}; outputs as before: {after.outputs == before.outputs}")
    figures = {
        "promoted": promoted,
        "same_outputs": after.outputs == before.outputs,
        "refresh_seconds": seconds,
        **{
            name: {"acceptance_rate": each.acceptance_rate, "tokens_per_step": each.tokens_per_step}
            for name, each in (("python", at_home), ("tables_before", before), ("tables_after", after))
        },
    }
    save(figures, options)
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
