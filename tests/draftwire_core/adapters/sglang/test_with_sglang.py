"""SGLang itself with remote drafters, on CPUs: the same tokens as SGLang without, whatever happens to the drafters.

DRAFTWIRE_TEST_SGLANG_PYTHON names the Python of an environment with SGLang and what draftwire needs. SGLang's compiled
kernels for CPUs, which PyPI has not, are replaced by ones in torch (tests/harness/stand_ins/sglang_packages).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from draftwire import Client
from tests.harness.checkout import MODELS, ROOT
from tests.harness.engine_process import EngineProcess
from tests.harness.entry_points import write_entry_points

PYTHON = os.environ.get("DRAFTWIRE_TEST_SGLANG_PYTHON", "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="no SGLang is here: DRAFTWIRE_TEST_SGLANG_PYTHON names none"),
    pytest.mark.timeout(900),
]

CHILD = Path(__file__).with_name("sglang_child.py")
PACKAGES = ROOT / "tests/harness/stand_ins/sglang_packages"
PROMPTS, TOKENS, ROWS = 24, 48, 6
PATIENCE = 300.0


class Sglang(EngineProcess):
    """A process that runs SGLang."""

    def __init__(self, folder: Path, prompts: Sequence[list[int]], **arguments: Any) -> None:
        folder.mkdir()
        order = {"model": str(MODELS / "target"), "prompts": prompts, "max_tokens": TOKENS, "arguments": arguments}
        plugin = write_entry_points("sglang.srt.plugins", folder / "installed")
        variables = {
            "PYTHONPATH": os.pathsep.join(map(str, (PACKAGES, plugin, ROOT, ROOT / "sdk"))),
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "DRAFTWIRE_SGLANG_LISTEN": "127.0.0.1:0",
            "DRAFTWIRE_SGLANG_LOG_FORMAT": "json",
        }
        super().__init__(PYTHON, CHILD, order, folder / "sglang.log", variables, PATIENCE)

    @property
    def address(self) -> str:
        """The address of its pool, once it is ready."""
        [line] = [line for line in self.log.splitlines() if '"listening"' in line]
        address: str = json.loads(line)["address"]
        return address


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
        sglang.wait_for("ready")
        sglang.go_on()
        texts: list[list[int]] = sglang.wait_for("texts")["texts"]
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
        sglang.wait_for("ready")
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
            answer = sglang.wait_for("texts")
    finally:
        sglang.end()
    assert answer["texts"] == plain
    assert answer["steps"] < 0.9 * PROMPTS * TOKENS, "drafts are accepted"
    assert "drafting failed" not in sglang.log
