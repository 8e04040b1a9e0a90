"""The services' programs: their names, their versions, a wrong flag, and missing packages."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from draftwire.version import __version__
from tests.harness import processes
from tests.harness.waiting import LONG_PATIENCE, PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS = {
    "draftwire-verifier": "verifier_service",
    "draftwire-drafter": "drafter_service",
    "draftwire-gateway": "gateway_service",
}
THE_SDKS = ("grpc", "grpc_status", "google", "typing_extensions.py")
"""The SDK's dependencies, as named in site-packages."""


def environment() -> dict[str, str]:
    """This process's variables without those that a program would read as its flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DRAFTWIRE_")}


def fork(*command: str) -> subprocess.CompletedProcess[str]:
    return processes.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment() | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
    )


def run(*command: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment() | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}:{path}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_PATIENCE,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A folder of scripts like those that an installation creates."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        (tmp_path / name).write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return tmp_path


def test_every_script_leads_to_a_function() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert set(scripts) == {"draftwire", *PROGRAMS}
    for entry in scripts.values():
        module, _, function = entry.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("module", "extra", "missing"),
    [
        ("verifier_service", "serve", ("torch", "pydantic_settings", "structlog")),
        ("drafter_service", "serve", ("torch", "pydantic_settings", "structlog")),
        ("gateway_service", "gateway", ("uvicorn", "fastapi", "structlog")),
    ],
)
def test_without_its_extra_one_line_says_what_to_install(
    module: str, extra: str, missing: tuple[str, ...], tmp_path: Path
) -> None:
    """The interpreter sees only the SDK's own packages."""
    for name in THE_SDKS:
        spec = importlib.util.find_spec(name.removesuffix(".py"))
        assert spec is not None
        places = list(spec.submodule_search_locations or [spec.origin or ""])
        (tmp_path / name).symlink_to(next(place for place in places if "packages" in place))
    done = run("-S", "-m", module, path=str(tmp_path))
    assert done.returncode == 1, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith(f"python -m {module}: requires draftwire[{extra}], but ")
    assert all(name in line for name in missing)
    assert "pip install 'draftwire[" not in line, "nobody publishes it under that name yet"


def test_a_gateway_whose_port_is_taken_ends_as_the_services_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = fork("-m", "gateway_service", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 1
    assert "address already in use" in done.stderr and "Traceback" not in done.stderr
    assert "starting" in done.stderr.splitlines()[0]


@pytest.mark.parametrize("module", PROGRAMS.values())
def test_it_says_its_version_and_what_a_wrong_flag_may_mean(module: str) -> None:
    assert fork("-m", module, "--version").stdout == f"python -m {module} {__version__}\n"
    wrong = fork("-m", module, "--listn", "127.0.0.1:0")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        f"python -m {module}: there is no flag --listn; did you mean --listen (all flags: python -m {module} --help)\n",
    )


@pytest.mark.slow
class TestPrograms:
    """Each in a process that has imported nothing before."""

    @pytest.mark.parametrize(("program", "module"), PROGRAMS.items())
    def test_it_has_a_name_and_a_version(self, program: str, module: str, script: Path) -> None:
        by_module, by_script = run("-m", module, "--version"), run(str(script / program), "--version")
        assert by_module.stdout == f"python -m {module} {__version__}\n", by_module.stderr
        assert by_script.stdout == f"{program} {__version__}\n", by_script.stderr
        assert run(str(script / program), "--help").stdout.startswith(f"usage: {program} [-h] [--version]")

    @pytest.mark.parametrize("module", PROGRAMS.values())
    def test_a_wrong_flag_is_one_line_with_the_likeliest(self, module: str) -> None:
        wrong = run("-m", module, "--listn", "127.0.0.1:0")
        assert wrong.returncode == 2
        assert wrong.stderr == (
            f"python -m {module}: there is no flag --listn; did you mean --listen "
            f"(all flags: python -m {module} --help)\n"
        )
        assert run("-m", module, "--log-level").stderr == (
            f"python -m {module}: argument --log-level: expected one argument (all flags: python -m {module} --help)\n"
        )
        assert "there is no argument here" in run("-m", module, "here").stderr


FIRST = """
import os
os.getpid = lambda: 1
from draftwire_core.runtime.process.program import run_program
run_program("imported_slowly", extra="serve", needed=())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_process_of_a_container_ends_at_a_signal_before_it_serves(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "imported_slowly.py").write_text(f"import time\nprint(flush=True)\ntime.sleep({LONG_PATIENCE})\n")
    path = f"{ROOT}:{ROOT / 'sdk'}:{tmp_path}"
    with subprocess.Popen(
        [sys.executable, "-c", FIRST], env=environment() | {"PYTHONPATH": path}, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(number)
            assert process.wait(PATIENCE) == 128 + number
        finally:
            process.kill()


def test_a_program_whose_streams_were_closed_still_writes_a_log(tmp_path: Path) -> None:
    """No socket or file of the program takes the number of its standard error, to which libraries write."""
    (tmp_path / "logging_program.py").write_text(
        "import os\nimport sys\n\n\ndef main():\n    sys.stderr.write(sys.stdin.read())\n"
        "    return 7 if os.path.samestat(os.fstat(2), os.stat(os.devnull)) else 1\n"
    )
    begin = "from draftwire_core.runtime.process.program import run_program\nraise SystemExit(run_program("
    begin += '"logging_program", extra="serve", needed=()))'
    command = ["sh", "-c", 'exec "$0" "$@" <&- 2>&-', sys.executable, "-c", begin]
    path = f"{ROOT}:{ROOT / 'sdk'}:{tmp_path}"
    done = subprocess.run(command, env=environment() | {"PYTHONPATH": path}, timeout=LONG_PATIENCE, check=False)
    assert done.returncode == 7
