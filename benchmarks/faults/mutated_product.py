"""The time until the default tier of the tests finds a fault in the product: one mutation at a time, in a copy.

    python -m benchmarks.faults.mutated_product [--only NAME] [--results DIR]

Each mutation changes one line of one package. The tests of the mirrored packages run on the copy until the first
failure; the seconds count from the command to the report of that failure, start and collection included.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.results import add_results_option, save
from tests.harness.checkout import ROOT

_MOST_SECONDS = 900.0
"""Time after which a mutation counts as not found."""


@dataclass(frozen=True)
class Mutation:
    """A fault of one line."""

    name: str
    file: str
    """From the root of the checkout."""
    old: str
    """Stands in the file once."""
    new: str
    tests: tuple[str, ...]
    """Files or directories that run; all are in `make test`."""


MUTATIONS = (
    Mutation(
        "a re-rooted tree forgets to subtract its walked nodes",
        "draftwire_core/engine/tree/token_tree.py",
        "self.size -= len(walked) + len(pruned)",
        "self.size -= len(pruned)",
        ("tests/draftwire_core/engine/tree",),
    ),
    Mutation(
        "a prefix that was extended stays held",
        "draftwire_core/engine/kv/prefix_cache.py",
        "        self._hold(stretch)\n        self.release(prefix)\n",
        "        self._hold(stretch)\n",
        ("tests/draftwire_core/engine/kv",),
    ),
    Mutation(
        "a request gets one node more than it allows",
        "draftwire_core/engine/planning/planner.py",
        "if taken[index] >= candidates[index].max_nodes:",
        "if taken[index] > candidates[index].max_nodes:",
        ("tests/draftwire_core/engine/planning",),
    ),
    Mutation(
        "probability mass must exceed top_p",
        "draftwire_core/engine/sampling/token_filters.py",
        "enough = running.double() >= target.unsqueeze(1)",
        "enough = running.double() > target.unsqueeze(1)",
        ("tests/draftwire_core/engine/sampling",),
    ),
    Mutation(
        "a step's rollback forgets the slots of probes",
        "draftwire_core/engine/engine/verification_job.py",
        "for node in (*self.nodes, *self.probes.nodes) if id(node) not in kept",
        "for node in self.nodes if id(node) not in kept",
        ("tests/draftwire_core/engine/engine",),
    ),
    Mutation(
        "a branch sees its first own node as shared",
        "draftwire_core/engine/engine/verification_job.py",
        "len(chain) + fresh, state",
        "len(chain) + fresh + 1, state",
        ("tests/draftwire_core/engine/engine", "tests/draftwire_core/engine/test_planted_faults.py"),
    ),
    Mutation(
        "no deadline for a drafter's handshake",
        "draftwire_core/pool/drafter/drafter_stream.py",
        "asyncio.timeout(_HANDSHAKE_SECONDS)",
        "asyncio.timeout(None)",
        ("tests/draftwire_core/pool",),
    ),
    Mutation(
        "ended sequences keep their part of the flood limit",
        "draftwire_core/pool/standing/flood_limit.py",
        "            self._most -= self._closed.popleft()[1]\n",
        "            self._closed.popleft()\n",
        ("tests/draftwire_core/pool",),
    ),
    Mutation(
        "one request more than the limit is admitted",
        "verifier_service/admission/admission.py",
        "if requests >= self._max_requests:",
        "if requests > self._max_requests:",
        ("tests/verifier_service",),
    ),
    Mutation(
        "a drain has no deadline",
        "draftwire_core/runtime/rpc/serving.py",
        "asyncio.timeout_at(deadline) as limit",
        "asyncio.timeout_at(None) as limit",
        ("tests/draftwire_core/runtime",),
    ),
    Mutation(
        "a body may arrive for ever",
        "gateway_service/http/request_body.py",
        "async with asyncio.timeout(self._seconds):",
        "async with asyncio.timeout(None):",
        ("tests/gateway_service/http",),
    ),
    Mutation(
        "one attempt too many at each address",
        "sdk/draftwire/_calls/failover.py",
        "final = self._failures >= self._policy.attempts_per_address * len(addresses)",
        "final = self._failures > self._policy.attempts_per_address * len(addresses)",
        ("tests/sdk",),
    ),
    Mutation(
        "a request that has ended keeps its local drafts",
        "draftwire_core/edge/draft_thread.py",
        "        self._listeners.pop(key, None)\n        self._drafter.close(key)\n",
        "        self._listeners.pop(key, None)\n",
        ("tests/sdk/test_edge.py",),
    ),
    Mutation(
        "last tokens are compared one place off",
        "draftwire_core/adapters/common/batch_mirror.py",
        "tail[-1 - fresh] != mirrored.tokens[-1]",
        "tail[-fresh] != mirrored.tokens[-1]",
        ("tests/draftwire_core/adapters/common", "tests/draftwire_core/adapters/vllm"),
    ),
    Mutation(
        "a damaged record of training data is read",
        "draftwire_core/training/data/dataset.py",
        "if len(payload) < size or zlib.crc32(payload) != checksum:",
        "if len(payload) < size:",
        ("tests/draftwire_core/training/data",),
    ),
    Mutation(
        "a drafter's connection waits for ever to flush",
        "drafter_service/conversation/drafting_session.py",
        "await asyncio.wait({writing}, timeout=_FLUSH_SECONDS)",
        "await asyncio.wait({writing})",
        ("tests/drafter_service",),
    ),
)


@dataclass(frozen=True)
class Found:
    """The outcome of a mutation."""

    name: str
    file: str
    seconds: float | None
    """Until the first failure; None if no test failed."""
    by: str | None
    """The test that failed."""


def try_mutation(mutation: Mutation, copy: Path) -> Found:
    """Runs the tests on the mutated copy, and restores it. Raises ValueError if the line is not there once."""
    file = copy / mutation.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} has the line of '{mutation.name}' {text.count(mutation.old)} times")
    file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--tier",
        "default",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        *mutation.tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, timeout=_MOST_SECONDS, env=_environment(), check=False
        )
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
    finally:
        seconds = time.monotonic() - began
        file.write_text(text, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return Found(mutation.name, mutation.file, round(seconds, 1) if failed else None, failed[1] if failed else None)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}


def main() -> None:
    """Tries the mutations and prints what found them."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    arguments.add_argument("--only", help="mutations whose name contains this")
    add_results_option(arguments)
    chosen = arguments.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "checkout"
        shutil.copytree(
            ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "site")
        )
        for mutation in MUTATIONS:
            if chosen.only is None or chosen.only in mutation.name:
                found.append(try_mutation(mutation, copy))
                told = "NOT FOUND" if found[-1].seconds is None else f"{found[-1].seconds:6.1f} s  {found[-1].by}"
                print(f"{mutation.file}: {mutation.name}\n    {told}", flush=True)
    save({"mutations": [asdict(each) for each in found]}, chosen)
    sys.exit(any(each.seconds is None for each in found))


if __name__ == "__main__":
    main()
