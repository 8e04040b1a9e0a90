"""The parts of vLLM's runner V2 that run without a GPU, with the speculator and real drafter services.

They are those of unpacked wheels (`tests/harness/vllm_sources.py`), run by this interpreter or by that in
DRAFTWIRE_TEST_VLLM_PYTHON, which must have what vLLM imports, torch for CPUs and Triton.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from draftwire import Client
from tests.harness.checkout import MODELS, ROOT
from tests.harness.engine_process import EngineProcess
from tests.harness.entry_points import write_entry_points
from tests.harness.vllm_sources import unpacked

PYTHON = os.environ.get("DRAFTWIRE_TEST_VLLM_PYTHON", sys.executable)
PATIENCE = 300.0
CHILD = Path(__file__).with_name("v2_child.py")
PROMPTS, TOKENS, DRAFTED = 15, 40, 4

pytestmark = [
    pytest.mark.skipif(not unpacked(), reason="DRAFTWIRE_TEST_VLLM names no unpacked wheel of vLLM"),
    pytest.mark.timeout(600),
]


def variables(wheel: Path, *further: Path) -> dict[str, str]:
    paths = ":".join(str(each) for each in (wheel, *further, ROOT, ROOT / "sdk"))
    return {
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
    tried = subprocess.run(command, env=os.environ | variables(place), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"{PYTHON} cannot import vLLM's runner V2: {tried.stderr.strip().splitlines()[-1]}")
    return place


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A directory that says to Python what an installation of this checkout says: which plugins vLLM is to load."""
    return write_entry_points("vllm.general_plugins", tmp_path / "site")


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
    child = EngineProcess(PYTHON, CHILD, order, tmp_path / "child.log", variables(wheel, plugin), PATIENCE)
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
    assert "dropped a sequence" not in child.log
