"""The documents' Python blocks and the scripts in examples/ run."""

import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwire import Client
from tests.harness import processes
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, sometimes

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(*, slow: bool) -> list[Any]:
    """Returns the Python blocks of all documents that load models or import the engine, or those that do not, except
    those marked with a comment `not run:` and the reason."""
    found = []
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))):
        text = document.read_text(encoding="utf-8")
        matches = list(BLOCK.finditer(text))
        assert len(matches) == text.count("```python"), f"{document.name}: a block that is not found would not be run"
        for match in matches:
            if (match["note"] or "").startswith("not run: "):
                continue
            if slow == ('"models/' in match["code"] or "draftwire_core.engine" in match["code"]):
                line = text.count("\n", 0, match.start("code")) + 1
                found.append(pytest.param(match["code"], id=f"{document.stem}-{line}"))
    return found


@pytest.fixture(scope="module")
def gateway(verifier: ServiceProcess, module_services: Services) -> ServiceProcess:
    """A gateway in front of the shared verifier."""
    return module_services.gateway("--verifier", verifier.address).serving()


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a script in this process, with its arguments; returns the printed text."""

    def run_script(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(f"{ROOT}/examples/{script}", run_name="__main__")
        return capsys.readouterr().out

    return run_script


def run(*command: str) -> str:
    """Runs Python as a reader would; returns the printed text."""
    finished = processes.run(
        [sys.executable, *command],
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        timeout=LONG_PATIENCE,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def of_these_services(code: str, client: Client, drafter: str, request: pytest.FixtureRequest) -> str:
    """Returns a block for the services of these tests, as they have other ports than a reader's."""
    code = code.replace("localhost:50051", client.address).replace("localhost:50052", drafter)
    if "http://localhost:8000" in code:
        code = code.replace("http://localhost:8000", request.getfixturevalue("gateway").url)
    code = code.replace('"models/', f'"{ROOT}/models/')
    assert "localhost" not in code
    return code


@pytest.mark.parametrize("code", blocks(slow=False))
def test_blocks(code: str, client: Client, good_drafter: str, request: pytest.FixtureRequest) -> None:
    exec(compile(of_these_services(code, client, good_drafter, request), "block", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("script", ["generate.py", "stream.py"])
def test_scripts(script: str, client: Client, good_drafter: str, run_here: Callable[..., str]) -> None:
    client.drafters.attach(good_drafter)
    assert run_here(script, "def fib(n):", client.address).startswith("def fib(n):")


def test_speculative_decoding_by_hand(client: Client, run_here: Callable[..., str]) -> None:
    """It draws what a verifier draws."""
    prompt, models = "def fib(n):", (f"{ROOT}/models/target", f"{ROOT}/models/draft")
    made = client.generate(prompt, max_tokens=48, temperature=0.8, seed=7, ignore_eos=True)
    printed = run_here("speculative_decoding_by_hand.py", *models, prompt)
    assert printed.startswith(f"{prompt}{made.text}\n--- 48 tokens in ")
    assert int(printed.split()[-5]) < 40, "most passes accept nothing"


@pytest.mark.slow
class TestWithModels:
    """Blocks and scripts that load models or import the engine, or swap drafters until a swap is in time."""

    @pytest.mark.parametrize("code", blocks(slow=True))
    def test_blocks(self, code: str, client: Client, good_drafter: str, request: pytest.FixtureRequest) -> None:
        run("-c", of_these_services(code, client, good_drafter, request))

    def test_edge(self, client: Client) -> None:
        printed = run(f"{ROOT}/examples/edge.py", f"{ROOT}/models/draft", "def fib(n):", client.address)
        assert printed.startswith("def fib(n):")
        assert printed.endswith("identical to plain decoding: yes\n")

    def test_swap_while_streaming(self, client: Client, good_drafter: str, bad_drafter: str) -> None:
        def swapped() -> bool:
            printed = run(f"{ROOT}/examples/swap_while_streaming.py", client.address, bad_drafter, good_drafter)
            assert printed.endswith("identical to plain decoding: yes\n")
            assert client.drafters.list() == []
            return "moved while running: 1 request\n" in printed

        sometimes(swapped, "the request moves while it runs")

    def test_in_process(self) -> None:
        printed = run(f"{ROOT}/examples/in_process.py", f"{ROOT}/models/target", f"{ROOT}/models/draft", "def fib(n):")
        for rule in ("coupled", "rejection", "typical", "threshold"):
            counts = re.findall(rf"^--- {rule}: (\d+) of (\d+) draft tokens accepted$", printed, re.MULTILINE)
            accepted, drafted = map(int, counts[0])
            assert 0 < accepted <= drafted


def test_every_script_is_run() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(script.name in text for script in (ROOT / "examples").glob("*.py"))
