"""The SDK and the command line start without the serving libraries."""

import subprocess
import sys

import pytest

from tests.harness.forbidden_imports import FORBID
from tests.harness.waiting import PATIENCE


def run(statement: str) -> subprocess.CompletedProcess[str]:
    """Runs `statement` in a fresh interpreter in which the serving libraries cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", FORBID + statement], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_sdk_and_cli_need_no_serving_library() -> None:
    result = run("import draftwire, draftwire.cli")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", [[], ["train"], ["train", "distill"], ["calibrate"]], ids=" ".join)
def test_every_command_shows_its_help(command: list[str]) -> None:
    result = run(f"sys.argv = {['draftwire', *command, '--help']}\nfrom draftwire.cli import main\nmain()")
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout


@pytest.mark.parametrize("library", ["torch", "transformers", "numpy"])
def test_the_hook_catches_an_import(library: str) -> None:
    result = run(f"import {library}")
    assert result.returncode != 0
    assert f"AssertionError: imported {library}" in result.stderr


def test_edge_says_what_it_needs() -> None:
    missing = FORBID.replace('raise AssertionError(f"imported {name}")', "raise ModuleNotFoundError(name=name)")
    result = subprocess.run(
        [sys.executable, "-c", f"{missing}import draftwire.edge"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode != 0
    assert "ImportError: draftwire.edge" in result.stderr
    assert "pip install -e '.[serve]'" in result.stderr
