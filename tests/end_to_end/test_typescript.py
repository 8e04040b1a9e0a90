"""The drafter and the client in TypeScript (examples/typescript) with a real verifier; skipped without node and npm."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwire import Client, Speculation
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.suite.skipped import skip_without
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "typescript"
PROMPT = "def read(path):\n    return path\n\ndef read(path):\n"


@pytest.fixture(scope="module")
def built() -> Path:
    """The compiled programs. The packages are installed once, as `npm ci` keeps them in the example's folder."""
    skip_without("node", "npm")
    if not (EXAMPLE / "node_modules" / "typescript").exists():
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        subprocess.run(install, cwd=EXAMPLE, check=True, capture_output=True, timeout=PATIENCE)
    subprocess.run(["node", "node_modules/typescript/bin/tsc"], cwd=EXAMPLE, check=True, timeout=PATIENCE)
    return EXAMPLE / "dist"


@pytest.fixture(scope="module")
def drafter(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the drafter."""
    log = tmp_path_factory.mktemp("typescript") / "log"
    with log.open("w") as output:
        process = subprocess.Popen(["node", built / "drafter.js", "127.0.0.1:0"], stdout=output, stderr=output)
    try:
        eventually(lambda: "listening at " in log.read_text() or process.poll() is not None, "the drafter listens")
        assert process.poll() is None, log.read_text()
        yield log.read_text().partition("listening at ")[2].split()[0]
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_the_drafter_keeps_the_rules(drafter: str) -> None:
    done = processes.run(
        [sys.executable, "-m", "draftwire.cli", "check-drafter", drafter, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = {each["rule"] for each in json.loads(done.stdout)["rules"] if each["outcome"] == "skipped"}
    assert skipped == {
        "handshake.tokenizer",
        "handshake.other_tokenizer",
        "malformed.token_id",
        "malformed.sampling",
        "draws.reported",
        "info.same",
        "features.map",
        "features.missing",
        "features.needed",
        "features.parts",
        "features.position",
        "features.sequence",
        "features.values",
        "features.weights",
    }


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_its_drafts_change_no_output(client: Client, drafter: str, temperature: float) -> None:
    client.drafters.attach(drafter, "typescript")
    drafted = 0
    for seed in range(6):
        asked = {"max_tokens": 48, "temperature": temperature, "seed": seed, "ignore_eos": True}
        plain = client.generate(PROMPT, speculation=Speculation(enabled=False), **asked)
        faster = client.generate(PROMPT, speculation=Speculation(drafter="typescript", planning="always"), **asked)
        assert faster.token_ids == plain.token_ids
        drafted += faster.speculation.draft_tokens
    assert drafted > 0
    (state,) = client.drafters.list()
    assert (state.name, state.last_error) == ("typescript", None)


def test_the_client(client: Client, built: Path) -> None:
    largest = 2**64 - 1  # which a JavaScript number cannot hold
    expected = client.generate(PROMPT, max_tokens=24, temperature=0.8, seed=largest)
    command = ["node", built / "client.js", PROMPT, client.address, "24", str(largest)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, expected.text), done.stderr
    assert done.stderr.startswith(f"seed {largest}\n")


def test_the_client_tells_errors(client: Client, built: Path) -> None:
    command = ["node", built / "client.js", PROMPT, client.address, "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("INVALID_ARGUMENT INVALID_FIELD: ")
