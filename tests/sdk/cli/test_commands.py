"""Commands of other packages are found by their entry points; one that cannot be imported is named."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.command import Command
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes


def install(directory: Path, name: str, value: str) -> None:
    """Writes the metadata of an installed package that has one command."""
    metadata = directory / f"draftwire_{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: draftwire-{name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[draftwire.commands]\n{name} = {value}\n")


@pytest.fixture
def draftwire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line with the packages of a directory."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hello_command", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return Command(monkeypatch, capsys)


def listed(output: str) -> list[str]:
    """Returns the commands of a help text, in its order."""
    return re.findall(r"^│ ([\w-]+) {2,}\S", output.partition("Commands")[2], re.MULTILINE)


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """The directory, with a package that has a command."""
    (tmp_path / "hello_command.py").write_text(
        'def hello(name: str) -> None:\n    """Greet someone."""\n    print(f"hello {name}")\n'
    )
    install(tmp_path, "hello", "hello_command:hello")
    return tmp_path


def test_a_command_of_another_package_runs(hello: Path) -> None:
    """In a process that has imported nothing before."""
    done = subprocess.run(
        [sys.executable, "-m", "draftwire.cli", "hello", "world"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(hello), *sys.path])},
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hello world\n"), done.stderr


@pytest.mark.usefixtures("hello")
def test_it_stands_among_the_others_in_the_help(draftwire: Command) -> None:
    result = draftwire("--help")
    assert result.code == 0, result.err
    assert "Greet someone." in result.out
    assert listed(result.out) == [
        "demo", "serve", "generate", "chat", "top", "bench", "check", "check-drafter", "probe", "drafters",
        "calibrate", "hello", "plan", "train", "version",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "why"),
    [("no_such_module:hello", "No module named 'no_such_module'"), ("hello_command:goodbye", "goodbye")],
)
@pytest.mark.parametrize("arguments", [("broken",), ("--help",)], ids=" ".join)
def test_one_that_cannot_be_imported_is_named(
    hello: Path, draftwire: Command, value: str, why: str, arguments: tuple[str, ...]
) -> None:
    install(hello, "broken", value)
    result = draftwire(*arguments)
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert f"the command broken ({value}) cannot be loaded: " in result.err
    assert why in result.err
    assert draftwire("version").code == 0


def test_a_command_of_the_sdk_is_nobody_elses(tmp_path: Path, draftwire: Command) -> None:
    install(tmp_path, "version", "no_such_module:version")
    assert draftwire("version").code == 0


@pytest.mark.parametrize("option", ["--port", "--host"])
def test_an_option_of_other_servers_is_told_how_addresses_are_given(draftwire: Command, option: str) -> None:
    ended = draftwire("serve", option, "9000", "--model", "somewhere")
    assert (ended.code, ended.out) == (2, "")
    assert f"No such option: {option}." in ended.err and "--listen 127.0.0.1:8000" in ended.err
