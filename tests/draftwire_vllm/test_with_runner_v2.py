"""The parts of vLLM's runner V2 that run without a GPU, with the speculator and real drafter services.

They are those of unpacked wheels (`tests/harness/vllm_sources.py`), run by this interpreter or by that in
DRAFTWIRE_TEST_VLLM_PYTHON, which must have what vLLM imports, torch for CPUs and Triton.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from draftwire import Client
from tests.harness.checkout import MODELS, ROOT
from tests.harness.vllm_sources import unpacked

PYTHON = os.environ.get("DRAFTWIRE_TEST_VLLM_PYTHON", sys.executable)
PATIENCE = 300.0
CHILD = Path(__file__).with_name("v2_child.py")
PROMPTS, TOKENS, DRAFTED = 15, 40, 4

pytestmark = [
    pytest.mark.skipif(not unpacked(), reason="DRAFTWIRE_TEST_VLLM names no unpacked wheel of vLLM"),
    pytest.mark.timeout(600),
]


def environment(wheel: Path, *further: Path) -> dict[str, str]:
    paths = ":".join(str(each) for each in (wheel, *further, ROOT, ROOT / "sdk"))
    return os.environ | {
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "DRAFTWIRE_VLLM_LISTEN": "127.0.0.1:0",
    }


@pytest.fixture(scope="module", params=unpacked() or [Path()], ids=lambda place: place.name)
def wheel(request: pytest.FixtureRequest) -> Path:
    place: Path = request.param
    command = [
        PYTHON,
        "-c",
        "import vllm.v1.worker.gpu.model_runner; from vllm.triton_utils import HAS_TRITON as h; h or 1/0",
    ]
    tried = subprocess.run(command, env=environment(place), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"{PYTHON} cannot import vLLM's runner V2: {tried.stderr.strip().splitlines()[-1]}")
    return place


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A directory that says to Python what an installation of this checkout says: which plugins vLLM is to load."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = tmp_path / "site" / "draftwire_here-0.dist-info"
    said.mkdir(parents=True)
    (said / "METADATA").write_text("Metadata-Version: 2.1\nName: draftwire-here\nVersion: 0\n")
    entries = project["entry-points"]["vllm.general_plugins"]
    lines = ["[vllm.general_plugins]", *(f"{name} = {entry}" for name, entry in entries.items())]
    (said / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return said.parent


class Child:
    """A process with vLLM's runner V2, as far as it goes."""

    def __init__(self, log: Path, variables: dict[str, str], **order: Any) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [PYTHON, str(CHILD), json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=variables,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, field: str) -> Any:
        """Waits for its next message, which must contain this field."""
        line = self._lines.get(timeout=PATIENCE)
        assert line, self._log.read_text(errors="replace")[-4000:]
        message = json.loads(line)
        assert field in message, message
        return message

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


@pytest.fixture
def services() -> Iterator[Services]:
    with Services() as running:
        yield running


def test_the_tokens_are_the_targets_while_a_drafter_is_swapped_and_another_killed(
    wheel: Path, plugin: Path, services: Services, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in held_out_prompts(10)]
    prompts = [ids[number % len(ids)][: 24 + 5 * number] for number in range(PROMPTS)]
    doomed, old, new = (services.drafter(MODELS / "draft", "--dtype", "float32") for _ in range(3))
    order = {"model": str(MODELS / "target"), "prompts": prompts, "max_tokens": TOKENS, "draft_tokens": DRAFTED}
    child = Child(tmp_path / "child.log", environment(wheel, plugin), **order)
    try:
        begun = child.wait_for("address")
        with Client(begun["address"]) as client:
            client.drafters.attach(doomed.address, name="doomed")
            client.drafters.attach(old.address, name="old")
            child.go_on()
            swapped = child.wait_for("running")
            client.drafters.swap("old", new.address)
            child.go_on()
            killed = child.wait_for("running")
            doomed.kill()
            child.go_on()
            answer = child.wait_for("texts")
            drafters = {each.name: each for each in client.drafters.list()}
    finally:
        child.end()
    assert begun["runner_v2"]
    # vLLM 0.32 has asynchronous scheduling for its own methods only.
    assert begun["asynchronous"] == (not begun["version"].startswith("0.32."))
    assert begun["others"] == "NgramGPUSpeculator"
    assert begun["others_runner_v2"] == [True, False]
    assert swapped["running"] > 0
    assert killed["running"] > 0
    assert swapped["accepted"] < killed["accepted"] < answer["accepted"]
    assert answer["texts"] == answer["plain"]
    assert answer["faults"] == {}
    assert set(drafters) == {"doomed", new.address}
    assert drafters[new.address].accepted_tokens > 0
    assert "dropped a sequence" not in (tmp_path / "child.log").read_text(errors="replace")
