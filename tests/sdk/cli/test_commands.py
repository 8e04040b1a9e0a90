"""Commands of other packages are found by their entry points; one that cannot be imported is named."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import PATIENCE


def install(directory: Path, name: str, value: str) -> None:
    """Writes the metadata of an installed package that has one command."""
    metadata = directory / f"draftwire_{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: draftwire-{name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[draftwire.commands]\n{name} = {value}\n")


def draftwire(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line with the packages of a directory."""
    path = os.pathsep.join([str(directory), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "draftwire.cli", *arguments],
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def listed(output: str) -> list[str]:
    """Returns the commands of a help text, in its order."""
    return re.findall(r"^│ ([\w-]+) {2,}\S", output.partition("Commands")[2], re.MULTILINE)


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    (tmp_path / "hello_command.py").write_text(
        'def hello(name: str) -> None:\n    """Greet someone."""\n    print(f"hello {name}")\n'
    )
    install(tmp_path, "hello", "hello_command:hello")
    return tmp_path


def test_a_command_of_another_package_runs(hello: Path) -> None:
    result = draftwire(hello, "hello", "world")
    assert (result.returncode, result.stdout) == (0, "hello world\n"), result.stderr


def test_it_stands_among_the_others_in_the_help(hello: Path) -> None:
    result = draftwire(hello, "--help")
    assert result.returncode == 0, result.stderr
    assert "Greet someone." in result.stdout
    assert listed(result.stdout) == [
        "demo", "serve", "generate", "chat", "top", "bench", "check", "check-drafter", "probe", "drafters",
        "calibrate", "hello", "train", "version",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "why"),
    [("no_such_module:hello", "No module named 'no_such_module'"), ("hello_command:goodbye", "goodbye")],
)
@pytest.mark.parametrize("arguments", [("broken",), ("--help",)], ids=" ".join)
def test_one_that_cannot_be_imported_is_named(hello: Path, value: str, why: str, arguments: tuple[str, ...]) -> None:
    install(hello, "broken", value)
    result = draftwire(hello, *arguments)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert f"the command broken ({value}) cannot be loaded: " in result.stderr
    assert why in result.stderr
    assert draftwire(hello, "version").returncode == 0


def test_a_command_of_the_sdk_is_nobody_elses(tmp_path: Path) -> None:
    install(tmp_path, "version", "no_such_module:version")
    assert draftwire(tmp_path, "version").returncode == 0
