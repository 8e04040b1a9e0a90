"""A command loads only the modules it needs: health checks run `draftwire probe` all the time."""

import os
import subprocess
import sys

import pytest

from draftwire.cli.app import app
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

LOADED = """
import sys
from draftwire.cli import main
commands = "draftwire.cli.", "draftwire_tools.", "rich"
sys.argv[1:] = {arguments}
try:
    main()
finally:
    print(*sorted(name for name in sys.modules if name.startswith(commands)), file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    """Returns the modules of commands, and of the rendering library, that a command has loaded by its end."""
    code = LOADED.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return set(done.stderr.splitlines()[-1].split())


def test_a_probe_loads_no_other_command() -> None:
    assert loaded("probe", "--address", "127.0.0.1:1", "--timeout", "1") == {
        "draftwire.cli.app",
        "draftwire.cli.connection",
        "draftwire.cli.failure",
        "draftwire_tools.probe",
    }


AWAY = """
import time
from concurrent.futures import ThreadPoolExecutor
import draftwire
import grpc
server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result()
server.stop(None).wait()
time.sleep(0.5)  # for the library to notice, and to log it if it does
"""


def test_a_server_that_goes_away_is_no_line_on_the_terminal() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", AWAY], capture_output=True, text=True, timeout=PATIENCE, check=True, env=environment
    )
    assert done.stderr == ""


@pytest.mark.parametrize("wrong", ["prob", "probes"])
def test_a_command_that_is_not_there_is_told_from_those_that_are(wrong: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "draftwire.cli", wrong], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2
    assert "Did you mean 'probe'?" in done.stderr


def test_every_command_can_be_loaded() -> None:
    import typer

    commands = typer.main.get_group(app).commands
    assert {name: command.name for name, command in commands.items()} == {name: name for name in commands}
