"""The command line against real services: in this process, and once as a program."""

import json
import os
import sys

import pytest

from draftwire import Client
from tests.harness import processes
from tests.harness.command import Command, Outcome
from tests.harness.services.service_process import ServiceProcess
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
LENGTH = ("--max-tokens", "24", "--seed", "3", "--temperature", "0.8", "--ignore-eos")


@pytest.fixture
def run(verifier: ServiceProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `draftwire ARGUMENTS` for the shared verifier."""
    monkeypatch.setenv("DRAFTWIRE_VERIFIER", verifier.address)
    return Command(monkeypatch, capsys)


def assert_one_line(done: Outcome, code: int, *words: str) -> None:
    assert (done.code, done.out) == (code, ""), done.err
    assert done.err.startswith("draftwire: ")
    assert done.err.count("\n") == 1
    for word in words:
        assert word in done.err


def test_generate(run: Command, client: Client) -> None:
    expected = client.generate(PROMPT, max_tokens=24, seed=3, temperature=0.8, ignore_eos=True)
    written = run("generate", PROMPT, *LENGTH)
    assert (written.code, written.out, written.err) == (0, expected.text + "\n", "")
    piped = run("generate", "-", *LENGTH, "--json", stdin=PROMPT)
    result = json.loads(piped.out)
    assert (result["text"], result["token_ids"], result["seed"]) == (expected.text, expected.token_ids, 3)
    assert (result["finish_reason"], result["usage"]["completion_tokens"]) == ("length", 24)
    assert result["speculation"]["drafters"] == []


def test_the_program(client: Client) -> None:
    """Its output is flushed, and its status is that of the command."""
    command = [sys.executable, "-m", "draftwire.cli", "generate", "-", *LENGTH, "--verifier", client.address]
    expected = client.generate(PROMPT, max_tokens=24, seed=3, temperature=0.8, ignore_eos=True)
    environment = os.environ | processes.ENVIRONMENT
    done = processes.run(command, input=PROMPT, env=environment, capture_output=True, text=True, timeout=LONG_PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.text + "\n", "")


def test_drafters_come_swap_and_go(run: Command, client: Client, good_drafter: str, bad_drafter: str) -> None:
    def listed() -> list[tuple[str, str, str, str]]:
        found = json.loads(run("drafters", "list", "--json").out)
        return [(drafter["name"], drafter["address"], drafter["state"], drafter["model"]) for drafter in found]

    assert run("drafters", "list").out == "no drafter is attached\n"
    assert run("drafters", "attach", bad_drafter, "--name", "bad").out == "bad is attached and ready\n"
    assert listed() == [("bad", bad_drafter, "ready", "draft-early")]
    table = run("drafters", "list").out.splitlines()
    assert table[0].split()[:3] == ["NAME", "ADDRESS", "STATE"]
    assert table[1].split()[:3] == ["bad", bad_drafter, "ready"]
    plain = client.generate(PROMPT, max_tokens=24, seed=3, temperature=0.8, ignore_eos=True)
    drafted = json.loads(run("generate", PROMPT, *LENGTH, "--drafter", "bad", "--json").out)
    assert drafted["token_ids"] == plain.token_ids

    swapped = run("drafters", "swap", "bad", good_drafter)
    assert swapped.out == f"{good_drafter} took over from bad; running requests moved: 0\n"
    assert listed() == [(good_drafter, good_drafter, "ready", "draft")]
    assert run("drafters", "detach", good_drafter).out == f"{good_drafter} is detached\n"
    assert listed() == []


def test_drafter_errors(run: Command, verifier: ServiceProcess) -> None:
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
def test_generate_errors(run: Command, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = run("generate", PROMPT, *arguments)
    assert_one_line(done, done.code, *words)
    assert done.code in (1, 2)


def test_no_verifier(run: Command) -> None:
    assert_one_line(run("generate", PROMPT, "--verifier", "127.0.0.1:1"), 1, "127.0.0.1:1")
