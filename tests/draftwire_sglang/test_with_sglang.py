"""SGLang itself with remote drafters, on CPUs: the same tokens as SGLang without, whatever happens to the drafters.

DRAFTWIRE_TEST_SGLANG_PYTHON names the Python of an environment with SGLang and what draftwire needs. SGLang's compiled
kernels for CPUs, which PyPI has not, are replaced by ones in torch (tests/harness/stand_ins/sglang_packages).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from draftwire import Client
from tests.harness.checkout import MODELS

PYTHON = os.environ.get("DRAFTWIRE_TEST_SGLANG_PYTHON", "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="no SGLang is here: DRAFTWIRE_TEST_SGLANG_PYTHON names none"),
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("sglang_child.py")
PACKAGES = ROOT / "tests/harness/stand_ins/sglang_packages"
PROMPTS, TOKENS, ROWS = 24, 48, 6
PATIENCE = 300.0


class Sglang:
    """A process that runs SGLang."""

    def __init__(self, folder: Path, prompts: Sequence[list[int]], **arguments: Any) -> None:
        folder.mkdir()
        self._log = folder / "sglang.log"
        order = {"model": str(MODELS / "target"), "prompts": prompts, "max_tokens": TOKENS, "arguments": arguments}
        path = os.pathsep.join(map(str, (PACKAGES, installed(folder), ROOT, ROOT / "sdk")))
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [PYTHON, str(CHILD), json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ
                | {
                    "PYTHONPATH": path,
                    "SGLANG_USE_CPU_ENGINE": "1",
                    "OMP_NUM_THREADS": "1",
                    "DRAFTWIRE_SGLANG_LISTEN": "127.0.0.1:0",
                    "DRAFTWIRE_SGLANG_LOG_FORMAT": "json",
                },
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self) -> Any:
        """Waits for its next message."""
        line = self._lines.get(timeout=PATIENCE)
        assert line, self._log.read_text(errors="replace")[-6000:]
        return json.loads(line)

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Ends it and its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def address(self) -> str:
        """The address of its pool, once it is ready."""
        [line] = [line for line in self.log.splitlines() if '"listening"' in line]
        address: str = json.loads(line)["address"]
        return address

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


def installed(folder: Path) -> Path:
    """A folder that says what an installation of this checkout would: the entry point that SGLang looks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, target)] = project["entry-points"]["sglang.srt.plugins"].items()
    place = folder / "installed"
    said = place / "draftwire_services-0.dist-info"
    said.mkdir(parents=True)
    (said / "METADATA").write_text("Metadata-Version: 2.1\nName: draftwire-services\nVersion: 0\n")
    (said / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {target}\n")
    return place


@pytest.fixture(scope="module")
def prompts() -> Sequence[list[int]]:
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in held_out_prompts(10)]
    return [ids[number % len(ids)][: 24 + 3 * number] for number in range(PROMPTS)]


@pytest.fixture(scope="module")
def plain(prompts: Sequence[list[int]], tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The output of SGLang without drafters."""
    sglang = Sglang(tmp_path_factory.mktemp("plain") / "run", prompts)
    try:
        sglang.wait()
        sglang.go_on()
        texts: list[list[int]] = sglang.wait()["texts"]
    finally:
        sglang.end()
    return texts


@pytest.fixture
def services() -> Iterator[Services]:
    with Services() as running:
        yield running


@pytest.mark.parametrize("trees", ["false", "true"], ids=["chains", "trees"])
def test_the_tokens_are_sglangs_while_a_drafter_is_swapped_and_another_killed(
    prompts: Sequence[list[int]],
    plain: list[list[int]],
    services: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trees: str,
) -> None:
    monkeypatch.setenv("DRAFTWIRE_SGLANG_TREES", trees)
    doomed, old, new = (services.drafter(MODELS / "draft", "--dtype", "float32") for _ in range(3))
    speculation = {"speculative_algorithm": "DRAFTWIRE", "speculative_num_draft_tokens": ROWS}
    sglang = Sglang(tmp_path / "run", prompts, **speculation)
    try:
        sglang.wait()
        with Client(sglang.address) as client:
            client.drafters.attach(doomed.address, name="doomed")
            client.drafters.attach(old.address, name="old")
            sglang.go_on()
            give_up = time.monotonic() + PATIENCE
            while sum(each.accepted_tokens for each in client.drafters.list()) < 20:
                assert time.monotonic() < give_up
                time.sleep(0.01)
            client.drafters.swap("old", new.address)
            doomed.kill()
            answer = sglang.wait()
    finally:
        sglang.end()
    assert answer["texts"] == plain
    assert answer["steps"] < 0.9 * PROMPTS * TOKENS, "drafts are accepted"
    assert "drafting failed" not in sglang.log
