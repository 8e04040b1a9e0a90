"""The SDK and the command line as pip installs them from a checkout: without torch, and without the services."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from draftwire import Client
from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS = 280

pytestmark = [pytest.mark.slow, pytest.mark.package_index]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the SDK alone."""
    directory = tmp_path_factory.mktemp("base")
    venv.create(directory)
    pip = [sys.executable, "-m", "pip", "--python", directory / "bin" / "python"]
    subprocess.run(
        [*pip, "install", "--quiet", "-c", "constraints.txt", "./sdk"],
        cwd=ROOT,
        check=True,
        timeout=INSTALL_SECONDS,
    )
    return directory / "bin"


def run(environment: Path, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRAFTWIRE_"))}
    return subprocess.run(
        [environment / program, *arguments],
        cwd=environment,  # not the repository, whose packages would be found
        env=clean,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_without_torch(environment: Path, client: Client) -> None:
    for library in ("torch", "transformers", "numpy", "gateway_service", "draftwire_core"):
        assert "No module named" in run(environment, "python", "-c", f"import {library}").stderr
    imported = run(environment, "python", "-c", "import draftwire; print(draftwire.__file__)")
    assert imported.returncode == 0, imported.stderr
    assert str(environment.parent) in imported.stdout

    expected = client.generate("def fib(n):", max_tokens=8, seed=7, ignore_eos=True)
    generated = run(
        environment, "draftwire", "generate", "def fib(n):", "--verifier", client.address,
        "--max-tokens", "8", "--seed", "7", "--ignore-eos", "--json",
    )  # fmt: skip
    assert generated.returncode == 0, generated.stderr
    assert json.loads(generated.stdout)["token_ids"] == expected.token_ids
