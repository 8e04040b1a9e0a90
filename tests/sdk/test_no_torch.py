"""The SDK and the command line start without the serving libraries."""

import json
import subprocess
import sys

import pytest

from tests.harness.forbidden_imports import FORBID
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes


def run(statements: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs statements in a fresh interpreter in which the serving libraries cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", FORBID + statements, *arguments],
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        check=False,
    )


def test_sdk_and_cli_need_no_serving_library() -> None:
    result = run("import draftwire, draftwire.cli")
    assert result.returncode == 0, result.stderr


COMMANDS = ("", "train", "train distill", "calibrate", "plan")
HELPS = """
import contextlib, io, json
from draftwire.cli import main
shown = {}
for command in sys.argv[1:]:
    sys.argv = ["draftwire", *command.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        main()
    shown[command] = output.getvalue()
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """What each command shows as its help, all in one process."""
    result = run(HELPS, *COMMANDS)
    assert result.returncode == 0, result.stderr
    shown: dict[str, str] = json.loads(result.stdout)
    return shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_its_help(command: str, helps: dict[str, str]) -> None:
    assert f"Usage: draftwire {command}".rstrip() in helps[command]


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
        timeout=LONG_PATIENCE,
        check=False,
    )
    assert result.returncode != 0
    assert "ImportError: draftwire.edge" in result.stderr
    assert "pip install -e '.[serve]'" in result.stderr
