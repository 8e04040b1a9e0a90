"""The documents' Python blocks and the scripts in examples/ run."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwire import Client
from tests.harness import processes
from tests.harness.gateway_process import GatewayProcess
from tests.harness.services import RunningService
from tests.harness.waiting import PATIENCE, sometimes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> list[Any]:
    """Returns the Python blocks of all documents, except those marked with a comment `not run:` and the reason."""
    found = []
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))):
        text = document.read_text(encoding="utf-8")
        matches = list(BLOCK.finditer(text))
        assert len(matches) == text.count("```python"), f"{document.name}: a block that is not found would not be run"
        for match in matches:
            if not (match["note"] or "").startswith("not run: "):
                line = text.count("\n", 0, match.start("code")) + 1
                found.append(pytest.param(match["code"], id=f"{document.stem}-{line}"))
    return found


@pytest.fixture(scope="module")
def gateway(verifier: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway in front of the shared verifier."""
    gateway = GatewayProcess(tmp_path_factory.mktemp("gateway"), "--verifier", verifier.address)
    yield gateway
    gateway.stop()


def run(*command: str) -> str:
    """Runs Python as a reader would; returns the printed text."""
    finished = processes.run(
        [sys.executable, *command],
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.parametrize("code", blocks())
def test_blocks(code: str, client: Client, good_drafter: str, request: pytest.FixtureRequest) -> None:
    code = code.replace("localhost:50051", client.address).replace("localhost:50052", good_drafter)
    if "http://localhost:8000" in code:
        code = code.replace("http://localhost:8000", request.getfixturevalue("gateway").url)
    code = code.replace('"models/', f'"{ROOT}/models/')
    assert "localhost" not in code
    run("-c", code)


@pytest.mark.parametrize("script", ["generate.py", "stream.py"])
def test_scripts(script: str, client: Client, good_drafter: str) -> None:
    client.drafters.attach(good_drafter)
    assert run(f"{ROOT}/examples/{script}", "def fib(n):", client.address).startswith("def fib(n):")


def test_edge(client: Client) -> None:
    printed = run(f"{ROOT}/examples/edge.py", f"{ROOT}/models/draft", "def fib(n):", client.address)
    assert printed.startswith("def fib(n):")
    assert printed.endswith("identical to plain decoding: yes\n")


def test_swap_while_streaming(client: Client, good_drafter: str, bad_drafter: str) -> None:
    def swapped() -> bool:
        printed = run(f"{ROOT}/examples/swap_while_streaming.py", client.address, bad_drafter, good_drafter)
        assert printed.endswith("identical to plain decoding: yes\n")
        assert client.drafters.list() == []
        return "moved while running: 1 request\n" in printed

    sometimes(swapped, "the request moves while it runs")


def test_in_process() -> None:
    printed = run(f"{ROOT}/examples/in_process.py", f"{ROOT}/models/target", f"{ROOT}/models/draft", "def fib(n):")
    for rule in ("coupled", "rejection", "typical", "threshold"):
        accepted, drafted = re.findall(rf"^--- {rule}: (\d+) of (\d+) draft tokens accepted$", printed, re.MULTILINE)[0]
        assert 0 < int(accepted) <= int(drafted)


def test_every_script_is_run() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(script.name in text for script in (ROOT / "examples").glob("*.py"))
