"""The command line against real services."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from draftwire import Client
from tests.harness.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.harness.services import RunningService

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "def read_config(path):\n"
LENGTH = ("--max-tokens", "24", "--seed", "3", "--temperature", "0.8", "--ignore-eos")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(verifier: "RunningService") -> Run:
    environment = os.environ | {"DRAFTWIRE_VERIFIER": verifier.address, "PYTHONPATH": str(ROOT / "sdk")}

    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "draftwire.cli", *arguments]
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    return run


def assert_one_line(done: "subprocess.CompletedProcess[str]", code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("draftwire: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_generate(run: Run, client: Client) -> None:
    expected = client.generate(PROMPT, max_tokens=24, seed=3, temperature=0.8, ignore_eos=True)
    written = run("generate", PROMPT, *LENGTH)
    assert (written.returncode, written.stdout, written.stderr) == (0, expected.text + "\n", "")
    piped = run("generate", "-", *LENGTH, "--json", stdin=PROMPT)
    result = json.loads(piped.stdout)
    assert (result["text"], result["token_ids"], result["seed"]) == (expected.text, expected.token_ids, 3)
    assert (result["finish_reason"], result["usage"]["completion_tokens"]) == ("length", 24)
    assert result["speculation"]["drafters"] == []


def test_drafters_come_swap_and_go(run: Run, client: Client, good_drafter: str, bad_drafter: str) -> None:
    def listed() -> list[tuple[str, str, str, str]]:
        found = json.loads(run("drafters", "list", "--json").stdout)
        return [(drafter["name"], drafter["address"], drafter["state"], drafter["model"]) for drafter in found]

    assert run("drafters", "list").stdout == "no drafter is attached\n"
    assert run("drafters", "attach", bad_drafter, "--name", "bad").stdout == "bad is attached and ready\n"
    assert listed() == [("bad", bad_drafter, "ready", "draft-early")]
    table = run("drafters", "list").stdout.splitlines()
    assert table[0].split()[:3] == ["NAME", "ADDRESS", "STATE"]
    assert table[1].split()[:3] == ["bad", bad_drafter, "ready"]
    plain = client.generate(PROMPT, max_tokens=24, seed=3, temperature=0.8, ignore_eos=True)
    drafted = json.loads(run("generate", PROMPT, *LENGTH, "--drafter", "bad", "--json").stdout)
    assert drafted["token_ids"] == plain.token_ids

    swapped = run("drafters", "swap", "bad", good_drafter)
    assert swapped.stdout == f"{good_drafter} took over from bad; running requests moved: 0\n"
    assert listed() == [(good_drafter, good_drafter, "ready", "draft")]
    assert run("drafters", "detach", good_drafter).stdout == f"{good_drafter} is detached\n"
    assert listed() == []


def test_drafter_errors(run: Run, verifier: "RunningService") -> None:
    assert_one_line(run("drafters", "detach", "nobody"), 1, "nobody")
    assert_one_line(run("drafters", "swap", "nobody", "127.0.0.1:1"), 1, "nobody")
    assert_one_line(run("drafters", "attach", "127.0.0.1:1"), 1, "127.0.0.1:1")
    assert_one_line(run("drafters", "attach", "not an address"), 2, "not an address")
    assert_one_line(run("drafters", "attach", verifier.address), 1, verifier.address)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--temperature", "-1"), ("temperature",)),
        (("--temperature", "nan"), ("temperature",)),
        (("--top-p", "1.5"), ("top_p",)),
        (("--max-tokens", "0"), ("max_tokens",)),
        (("--max-tokens", "100000"), ("max_tokens",)),
        (("--drafter", "nobody"), ("nobody",)),
    ],
)
def test_generate_errors(run: Run, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = run("generate", PROMPT, *arguments)
    assert_one_line(done, done.returncode, *words)
    assert done.returncode in (1, 2)


def test_no_verifier(run: Run) -> None:
    assert_one_line(run("generate", PROMPT, "--verifier", "127.0.0.1:1"), 1, "127.0.0.1:1")
